"""Validation of a caller's values before anything is sent: counts, sizes, offsets, seconds, signals and commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from hermes_exec.errors import ConfigError

_NUMBERS = (int, float)
LONGEST_S = 1e9
HIGHEST_SIGNAL = 64
LARGEST_COUNT = 1 << 60
"""The largest count or position: the sum of two still fits into 64 bits."""


def validate_timeout(timeout_s: float | None, name: str = "timeout_s") -> float | None:
    """Return seconds above 0, or None for no limit. Raises ConfigError."""
    if timeout_s is None:
        return None
    if not _is_number(timeout_s):
        raise ConfigError(f"{name} must be a number of seconds or None, not {timeout_s!r}")
    if math.isnan(timeout_s) or not 0 < timeout_s <= LONGEST_S:
        raise ConfigError(f"{name} must be above 0 and at most {LONGEST_S:g}, or None for no limit, not {timeout_s!r}")
    return float(timeout_s)


def validate_wait(wait_s: float, name: str = "wait_s") -> float:
    """Return seconds, 0 or more. Raises ConfigError."""
    if not _is_number(wait_s) or not 0 <= wait_s <= LONGEST_S:
        raise ConfigError(f"{name} must be a number of seconds from 0 to {LONGEST_S:g}, not {wait_s!r}")
    return float(wait_s)


def validate_size(size: int, name: str) -> int:
    """Return a number of bytes, 0 or more. Raises ConfigError."""
    return validate_count(size, name, least=0)


def validate_count(count: int, name: str, *, least: int = 1) -> int:
    """Return a count of at least `least`. Raises ConfigError."""
    if not is_integer(count) or count < least:
        raise ConfigError(f"{name} must be an integer of {least} or more, not {count!r}")
    if count > LARGEST_COUNT:
        raise ConfigError(f"{name} must be at most 2^60, not {count!r}")
    return count


def validate_offset(offset: int, name: str) -> int:
    """Return a number of bytes from the beginning, or from the end if it is negative. Raises ConfigError."""
    if not is_integer(offset) or abs(offset) > LARGEST_COUNT:
        raise ConfigError(f"{name} must be an integer from -2^60 to 2^60, not {offset!r}")
    return offset


def validate_signal(number: int) -> int:
    """Return the number of a Linux signal. Raises ConfigError."""
    if not is_integer(number) or not 0 < number <= HIGHEST_SIGNAL:
        raise ConfigError(f"a signal is a number up to {HIGHEST_SIGNAL}, such as signal.SIGTERM, not {number!r}")
    return int(number)


def is_integer(value: object) -> TypeGuard[int]:
    """Check whether a value is an integer, not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # Not the obvious code: see docs/why-not-obvious.md ("Exact types first").
    return type(value) is float or type(value) is int or (isinstance(value, _NUMBERS) and not isinstance(value, bool))


def validate_commands(value: object, name: str) -> tuple[str, ...]:
    """Return a command or a list of commands as a tuple, None as an empty one. Raises ConfigError for an invalid
    command.
    """
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else () if value is None else (value,)
    commands = tuple(command for command in values if isinstance(command, str) and command and "\0" not in command)
    if len(commands) != len(values):
        raise ConfigError(f"{name} must be a command or a list of commands, each a str without NUL")
    return commands
