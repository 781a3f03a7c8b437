"""What failures of an engine are here: each adapter has a table of them, and all tables are read in one way."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import anyio

from hermes_exec.backends.base import Sandbox
from hermes_exec.errors import BackendUnavailable, ChannelLost, ErrorCause, ExecError, SandboxDied

RETRY_TIMEOUT_S, RETRY_PAUSE_S = 10.0, 0.5
"""How long an engine that is away is asked again to end a sandbox, and how often."""


class ErrorRow(NamedTuple):
    """A row of a table: the failures that it is for, and the error that they are here.

    It is for failures of one of the `types`, with one of the `statuses`, in whose text `pattern` is found; what is
    empty matches all. In `message` stand `{reason}` for the text, `{status}`, and the names that the adapter gives.
    """

    error: Callable[[str], ExecError]
    message: str
    pattern: str = ""
    types: tuple[type[BaseException], ...] = ()
    statuses: tuple[int, ...] = ()

    def matches(self, text: str, failure: BaseException | None, status: int | None) -> bool:
        """Return whether a failure is one of those that this row is for."""
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
    """Return the error of the first row that is for a failure. `text` is what patterns are searched in, if that is more
    than the message is to have. The last row of a table is for all.
    """
    row = next(row for row in rows if row.matches(reason if text is None else text, failure, status))
    return row.error(row.message.format(reason=reason, status=status, **names))


def mark_temporary(error: BackendUnavailable) -> BackendUnavailable:
    """Return the error, marked as that of an engine that has answered before, or that did not answer in time, which
    proves nothing: whoever waits for a sandbox goes on waiting.
    """
    error.cause, error.retryable = ErrorCause.INFRA, True
    return error


def temporarily_unavailable(message: str) -> BackendUnavailable:
    """Return the error of an engine that is away for now."""
    return mark_temporary(BackendUnavailable(message))


async def end_with_retries(end: Callable[[], Awaitable[object]]) -> ExecError | OSError | None:
    """End something; why it could not be, None when it was. An engine that is away for a moment is asked again."""
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
    """The error of `Sandbox.open` for a stream that could not be had: that the sandbox has ended, or that it cannot
    be reached now. `what` is what a sandbox of this backend is called.
    """
    status = await sandbox.status()
    if status.state == "dead":
        return SandboxDied(f"the {what} has ended", post_mortem=status.post_mortem, sandbox=sandbox.id)
    return ChannelLost(f"no stream into the {what}: {status.detail or error}", sandbox=sandbox.id)
