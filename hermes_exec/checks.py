"""Numbers that a caller gives: counts, sizes, offsets, seconds and signals, checked before anything is sent."""

from __future__ import annotations

import math
from typing import TypeGuard

from hermes_exec.errors import ConfigError

_NUMBERS = (int, float)
LONGEST_S = 1e9
HIGHEST_SIGNAL = 64
LARGEST_COUNT = 1 << 60
"""The largest count or position: the sum of two still fits into 64 bits."""


def validate_timeout(timeout_s: float | None, what: str = "timeout_s") -> float | None:
    """Seconds above 0, or None for no limit."""
    if timeout_s is None:
        return None
    if not _is_number(timeout_s):
        raise ConfigError(f"{what} must be a number of seconds or None, not {timeout_s!r}")
    if math.isnan(timeout_s) or not 0 < timeout_s <= LONGEST_S:
        raise ConfigError(f"{what} must be above 0 and at most {LONGEST_S:g}, or None for no limit, not {timeout_s!r}")
    return float(timeout_s)


def validate_wait(wait_s: float, what: str = "wait_s") -> float:
    """Seconds, 0 or more."""
    if not _is_number(wait_s) or not 0 <= wait_s <= LONGEST_S:
        raise ConfigError(f"{what} must be a number of seconds from 0 to {LONGEST_S:g}, not {wait_s!r}")
    return float(wait_s)


def validate_size(size: int, what: str) -> int:
    """A number of bytes, 0 or more."""
    return validate_count(size, what, least=0)


def validate_count(count: int, what: str, *, least: int = 1) -> int:
    """A count of at least `least`."""
    if not is_integer(count) or count < least:
        raise ConfigError(f"{what} must be an integer of {least} or more, not {count!r}")
    if count > LARGEST_COUNT:
        raise ConfigError(f"{what} must be at most 2^60, not {count!r}")
    return count


def validate_offset(offset: int, what: str) -> int:
    """A number of bytes from the beginning, or from the end when it is negative."""
    if not is_integer(offset) or abs(offset) > LARGEST_COUNT:
        raise ConfigError(f"{what} must be an integer from -2^60 to 2^60, not {offset!r}")
    return offset


def validate_signal(number: int) -> int:
    """The number of a signal of Linux."""
    if not is_integer(number) or not 0 < number <= HIGHEST_SIGNAL:
        raise ConfigError(f"a signal is a number up to {HIGHEST_SIGNAL}, such as signal.SIGTERM, not {number!r}")
    return int(number)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is an integer and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return type(value) is float or type(value) is int or (isinstance(value, _NUMBERS) and not isinstance(value, bool))
