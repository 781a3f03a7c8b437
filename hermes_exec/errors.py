"""The error model: whose fault is it?

1. What a tool did (a command failed, timed out, was missing) is a *result*; nothing here is raised for it unless it was asked for by `check=True`.
2. What we, the box or its provider did is an exception of this tree. It ends an episode unscored and never becomes a reward.
3. Each class also is the standard library's exception of the same meaning, where there is one.
4. `cause` says whose fault it is, in one vocabulary from here to the trainer; `retryable` says whether the same call may succeed later.

    ExecError
      ConfigError(ValueError)
      BackendUnavailable
      LaunchError
        ImageError · LaunchTimeout(TimeoutError) · QuotaExceeded · IsolationError
      AcquireTimeout(TimeoutError)
      SandboxDied
      ChannelLost(ConnectionError)
      OutcomeUnknown
      ProtocolError
      SlotClosed
      CommandFailed
      OutputLimitExceeded
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_exec.results import PostMortem, RunResult


class ErrorCause(StrEnum):
    """Who a failure belongs to, everywhere in this project."""

    POLICY = "policy"
    TASK = "task"
    INFRA = "infra"
    PROVIDER = "provider"
    CONFIG = "config"
    BUDGET = "budget"
    CANCELLED = "cancelled"


class ExecError(Exception):
    """Base of every error that this package raises.

    `sandbox` is the id of the box and `request_id` the id of the request on its channel, None where there was none.
    """

    cause: ErrorCause = ErrorCause.INFRA
    retryable: bool = False

    def __init__(self, message: str, *, sandbox: str | None = None, request_id: int | None = None) -> None:
        super().__init__(message)
        self.sandbox = sandbox
        self.request_id = request_id


class ConfigError(ExecError, ValueError):
    """Raised before anything was started, when what was asked for is wrong or impossible; says what would be right."""

    cause = ErrorCause.CONFIG


class BackendUnavailable(ExecError):
    """Raised when a backend cannot work here: not installed, no daemon, no credentials; names the command that mends it."""

    cause = ErrorCause.CONFIG


class LaunchError(ExecError):
    """Raised when a box could not be started, after the bounded number of tries."""

    retryable = True


class ImageError(LaunchError):
    """Raised when the image is missing and may not be pulled, or the pull was refused."""

    cause = ErrorCause.CONFIG
    retryable = False


class LaunchTimeout(LaunchError, TimeoutError):
    """Raised when a box did not become ready within `launch_timeout_s`, or its image within `pull_timeout_s`."""


class QuotaExceeded(LaunchError):
    """Raised when the provider has no room for another box."""

    cause = ErrorCause.PROVIDER


class IsolationError(LaunchError):
    """Raised when a box cannot give the isolation or a limit that was asked for; nothing is downgraded silently."""

    cause = ErrorCause.CONFIG
    retryable = False


class AcquireTimeout(ExecError, TimeoutError):
    """Raised when no slot became free within the time; says what the pool was waiting for."""

    retryable = True


class SandboxDied(ExecError):
    """Raised on the call under way and on each later one when the box is gone.

    A box that its own tenant ended counts as the policy's doing.
    """

    def __init__(
        self, message: str, *, post_mortem: PostMortem, sandbox: str | None = None, request_id: int | None = None
    ) -> None:
        super().__init__(message, sandbox=sandbox, request_id=request_id)
        self.post_mortem = post_mortem
        if post_mortem.suspect == "tenant":
            self.cause = ErrorCause.POLICY


class ChannelLost(ExecError, ConnectionError):
    """Raised when the stream to a box is gone and was not restored in time, and the request had not been sent."""

    retryable = True


class OutcomeUnknown(ExecError):
    """Raised when a request was sent and its answer can no longer be had: it may have run. `__cause__` says why."""


class ProtocolError(ExecError):
    """Raised when a box sent what the protocol forbids; the box is destroyed."""


class SlotClosed(ExecError):
    """Raised for every use of a slot, or of a handle in it, after it was released, reset or taken back; also for calls under way then."""


class CommandFailed(ExecError):
    """Raised only when it was asked for, by `check=True` or `result.check()`, and the command did not succeed."""

    cause = ErrorCause.POLICY

    def __init__(self, message: str, result: RunResult, *, sandbox: str | None = None) -> None:
        super().__init__(message, sandbox=sandbox, request_id=result.request_id)
        self.result = result


class OutputLimitExceeded(ExecError):
    """Raised only by `files.read_*` when a file is larger than `limit_bytes`; nothing was cut silently."""

    cause = ErrorCause.POLICY


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the closest known name, or all of them: `; did you mean 'docker'?`."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if names else ""
