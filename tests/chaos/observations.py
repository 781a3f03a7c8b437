"""What one disaster looked like to the caller, to the pool and from outside, in the words of the table."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hermes_exec import ExecError, OutcomeUnknown, RunResult, SandboxDied

FULL = "No space left on device"


class Seen(NamedTuple):
    """One disaster. `seconds` is from its beginning to the end of the call that was under way."""

    call: str
    then: str
    pool: str
    left: str
    seconds: float


class Told(NamedTuple):
    """How a call ended, and when (time.monotonic)."""

    text: str
    at: float


async def told(call: Callable[[], Awaitable[RunResult]], expected: str) -> Told:
    """Make a call; its result must have this output."""
    try:
        result = await call()
    except (ExecError, OSError) as error:
        return Told(words(error), time.monotonic())
    at = time.monotonic()
    if result.oom_killed:
        return Told(f"a result: `oom_killed`, exit code {result.exit_code}", at)
    if not result.ok:
        text = f"a result: exit code {result.exit_code}"
        return Told(text + (f", “{FULL}”" if FULL in result.stderr else ""), at)
    assert result.stdout == expected, f"{result.stdout!r} is not {expected!r}"
    return Told("the whole result", at)


def words(error: BaseException) -> str:
    """An exception as the table has it: class, cause, and what it stands on."""
    text = f"`{type(error).__name__}`"
    if isinstance(error, OSError) and error.errno:
        text += f" ({errno.errorcode[error.errno]})"
    if isinstance(error, ExecError):
        text += f", {error.cause.value}"
    post_mortem = error.post_mortem if isinstance(error, SandboxDied) else None
    if post_mortem is not None:
        text += ", out of memory" if post_mortem.oom else ""
        text += f", suspect `{post_mortem.suspect}`"
    cause = error.__cause__
    if isinstance(error, OutcomeUnknown) and cause is not None:
        text += f", from `{type(cause).__name__}`"
    return text
