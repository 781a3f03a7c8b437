"""Translation of an engine's failures: each adapter has a table of them, and all tables are read in one way."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import anyio

from hermes_exec.backends.base import Sandbox
from hermes_exec.errors import BackendUnavailable, ChannelLost, ErrorCause, ExecError, SandboxDied

RETRY_TIMEOUT_S, RETRY_PAUSE_S = 10.0, 0.5
"""Longest time of retries to end a sandbox while its engine is away, and the pause between them."""


class ErrorRow(NamedTuple):
    """A row of a table: the failures that it matches, and their translation.

    It matches failures of one of the `types`, with one of the `statuses`, and with `pattern` in their text. An empty
    condition matches all. `message` may contain `{reason}` for the text, `{status}`, and the names that the adapter
    passes.
    """

    error: Callable[[str], ExecError]
    message: str
    pattern: str = ""
    types: tuple[type[BaseException], ...] = ()
    statuses: tuple[int, ...] = ()

    def matches(self, text: str, failure: BaseException | None, status: int | None) -> bool:
        """Return whether this row matches a failure."""
        if self.types and not isinstance(failure, self.types):
            return False
        if self.statuses and status not in self.statuses:
            return False
        return re.search(self.pattern, text) is not None


def translate(
    rows: Sequence[ErrorRow],
    reason: str,
    *,
    text: str | None = None,
    failure: BaseException | None = None,
    status: int | None = None,
    **names: object,
) -> ExecError:
    """Return the error of the first matching row. `text` is searched for patterns, if it is more than the message has.
    The last row of a table matches all.
    """
    row = next(row for row in rows if row.matches(reason if text is None else text, failure, status))
    return row.error(row.message.format(reason=reason, status=status, **names))


def mark_temporary(error: BackendUnavailable) -> BackendUnavailable:
    """Mark an error as temporary, so that requests keep waiting for a sandbox.

    It is for an engine that has answered before, or that did not answer in time, which proves nothing.
    """
    error.cause, error.retryable = ErrorCause.INFRA, True
    return error


def temporarily_unavailable(message: str) -> BackendUnavailable:
    """Return the error for an engine that is temporarily away."""
    return mark_temporary(BackendUnavailable(message))


async def end_with_retries(end: Callable[[], Awaitable[object]]) -> ExecError | OSError | None:
    """End something, retrying while its engine is away for a moment. Return the last error, or None on success."""
    until = anyio.current_time() + RETRY_TIMEOUT_S
    while True:
        try:
            await end()
        except (ExecError, OSError) as error:
            again = isinstance(error, ExecError) and error.retryable
            if not again or anyio.current_time() > until:
                return error
            await anyio.sleep(RETRY_PAUSE_S)
        else:
            return None


async def open_error(sandbox: Sandbox, what: str, error: ExecError) -> SandboxDied | ChannelLost:
    """Return the error of `Sandbox.open` for a stream that could not be opened.

    It is SandboxDied if the sandbox has ended, else ChannelLost. `what` is the backend's term for a sandbox.
    """
    status = await sandbox.status()
    if status.state == "dead":
        return SandboxDied(f"the {what} has ended", post_mortem=status.post_mortem, sandbox=sandbox.id)
    return ChannelLost(f"no stream into the {what}: {status.detail or error}", sandbox=sandbox.id)
