"""The params of a command: validated before anything is sent, in the form of the wire protocol."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes_exec.channel.encoding import WireBytes, to_wire
from hermes_exec.checks import is_integer, validate_size
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.slot.scope import SlotScope

Command = str | Sequence[str | bytes | os.PathLike[str]]
"""A `str` runs in the slot's shell; a sequence is a program and its arguments, without a shell."""
Environment = Mapping[str, str | bytes]
DEFAULT_TIMEOUT_S = 180.0
DEFAULT_OUTPUT_BYTES = 1 << 20
DEFAULT_PTY = (24, 80)
LONGEST_PATH, SHOWN_PATH = 1 << 16, 256
LONGEST_USER = 256


def command_params(
    scope: SlotScope,
    command: Command,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Environment | None = None,
    user: str | None = None,
    output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
    merge_stderr: bool = False,
) -> dict[str, Any]:
    """Return the params that `exec.run` and `proc.spawn` share.

    Raises:
        ConfigError: If the command or an option is invalid.
    """
    params: dict[str, Any] = {"slot": scope.slot, "stdin": False, "merge_stderr": bool(merge_stderr)}
    params["output_limit_bytes"] = output_limit_bytes
    if validate_size(output_limit_bytes, "output_limit_bytes") > DEFAULT_OUTPUT_BYTES:
        _check_output(scope, output_limit_bytes)
    if isinstance(command, str):
        params["shell"] = to_wire(command, "the command")
    else:
        params["argv"] = argv_words(command)
    if cwd is not None:
        params["cwd"] = validate_path(cwd, "cwd")
    if env:
        params["env"] = validate_env(env)
    return params | user_params(user)


def user_params(user: str | None) -> dict[str, str]:
    """Return the params that choose the user of a call. Raises ConfigError."""
    if user is None:
        return {}
    if not _is_text(user) or len(user) > LONGEST_USER:
        raise ConfigError(f"user must be the name of a user, not {str(user)[:LONGEST_USER]!r}")
    return {"user": user}


def _check_output(scope: SlotScope, limit_bytes: int) -> None:
    facts = scope.channel.facts
    if limit_bytes > facts.most_output_bytes:
        raise ConfigError(
            f"output_limit_bytes={limit_bytes} is above the maximum here ({facts.most_output_bytes}): a "
            f"quarter of the runner's {facts.memory.limit_bytes >> 20} MiB. Let the command write a file and read "
            "that, or give the pool a larger runner_memory_mb (at most an eighth of the sandbox's memory)"
        )


def argv_words(command: Sequence[str | bytes | os.PathLike[str]]) -> list[WireBytes]:
    """Return a program and its arguments in wire form. Raises ConfigError."""
    if not _is_sequence(command):
        raise ConfigError(f"command must be a str or a sequence of str, not {type(command).__name__}")
    if not command:
        raise ConfigError("command is an empty sequence: its first item names the program")
    if command[0] in ("", b""):
        raise ConfigError("command[0] is empty: it names the program")
    return [to_wire(word, f"command[{index}]") for index, word in enumerate(command)]


def validate_path(path: str | bytes | os.PathLike[str], name: str) -> WireBytes:
    """Return a path in wire form.

    Raises:
        ConfigError: If it is empty or not a path.
        OSError: ENAMETOOLONG, if it is longer than any system accepts.
    """
    if path in ("", b""):
        raise ConfigError(f"{name} is empty")
    wired = to_wire(path, name)
    if len(text := wired if isinstance(wired, str) else wired["b64"]) > LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), text[:SHOWN_PATH])
    return wired


def validate_env(env: Environment) -> dict[str, WireBytes]:
    """Return names and values of environment variables in wire form. Raises ConfigError."""
    if not isinstance(env, Mapping):
        raise ConfigError(f"env must be a mapping, not {type(env).__name__}")
    checked: dict[str, WireBytes] = {}
    for name, value in env.items():
        if not _is_text(name) or "=" in name:
            raise ConfigError(f"{name!r} cannot be the name of an environment variable")
        wired = to_wire(name, f"the name {name!r} in env")
        if not isinstance(wired, str):
            raise ConfigError(f"{name!r} cannot be the name of an environment variable: it is not UTF-8")
        checked[wired] = to_wire(value, f"the value of {name!r} in env")
    return checked


def pty_size(pty: bool | tuple[int, int] | None) -> dict[str, int] | None:
    """Return the rows and columns of a new terminal: 24 by 80 for True, None for False. Raises ConfigError."""
    if pty is None or pty is False:
        return None
    rows, cols = DEFAULT_PTY if pty is True else _pair(pty)
    if not _is_side(rows) or not _is_side(cols):
        raise ConfigError(f"pty must be True or (rows, columns), each from 1 to 65535, not {pty!r}")
    return {"rows": rows, "cols": cols}


def terminal_size(rows: int, cols: int) -> dict[str, int]:
    """Return the new rows and columns of an existing terminal. Raises ConfigError."""
    if not _is_side(rows) or not _is_side(cols):
        raise ConfigError(f"rows and cols must be integers from 1 to 65535, not {rows!r} and {cols!r}")
    return {"rows": rows, "cols": cols}


def _is_side(value: object) -> bool:
    return is_integer(value) and 0 < value <= 0xFFFF


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_sequence(value: object) -> bool:
    if type(value) is list or type(value) is tuple:
        return True  # isinstance with an abstract class is slow: see docs/why-not-obvious.md ("Exact types first")
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview)


def _pair(pty: object) -> tuple[int, int]:
    if isinstance(pty, tuple | list) and len(pty) == 2:
        return pty[0], pty[1]
    raise ConfigError(f"pty must be True or (rows, columns), not {pty!r}")
