"""What failures of an engine come to: it is away for a moment, or the box has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from hermes_exec.backends.base import Sandbox
from hermes_exec.errors import BackendUnavailable, ChannelLost, ErrorCause, ExecError, SandboxDied

AWAY_S, AWAY_PAUSE_S = 10.0, 0.5
"""How long an engine that is away is asked again to end a box, and how often."""


def away_for_now(error: BackendUnavailable) -> BackendUnavailable:
    """Return the error, marked as that of an engine that has answered before, or that did not answer in time, which
    proves nothing: whoever waits for a sandbox goes on waiting.
    """
    error.cause, error.retryable = ErrorCause.INFRA, True
    return error


async def why_not_ended(end: Callable[[], Awaitable[object]]) -> ExecError | OSError | None:
    """End something; why it could not be, None when it was. An engine that is away for a moment is asked again."""
    until = anyio.current_time() + AWAY_S
    while True:
        try:
            await end()
        except (ExecError, OSError) as error:
            again = isinstance(error, ExecError) and error.retryable
            if not again or anyio.current_time() > until:
                return error
            await anyio.sleep(AWAY_PAUSE_S)
        else:
            return None


async def not_opened(sandbox: Sandbox, what: str, error: ExecError) -> SandboxDied | ChannelLost:
    """The error of ``Sandbox.open`` for a stream that could not be had: that the box has ended, or that it cannot be
    reached now. `what` is what a box of this backend is called.
    """
    status = await sandbox.status()
    if status.state == "dead":
        return SandboxDied(f"the {what} has ended", post_mortem=status.post_mortem, sandbox=sandbox.id)
    return ChannelLost(f"no stream into the {what}: {status.detail or error}", sandbox=sandbox.id)
