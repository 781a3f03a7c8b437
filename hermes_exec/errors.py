"""The error model: one tree, and for each class the condition that raises it.

Failures inside a tool (a failing command, a timeout, a missing file) are results. Exceptions report failures of the
caller's configuration, of this library, of the sandbox or of its provider. Every error has a `cause`, so that an
episode can be scored or dropped without parsing messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, Protocol

Suspect = Literal["tenant", "outside", "unknown"]


class ErrorCause(StrEnum):
    """The origin of a failure; the same words in errors, episodes and reports."""

    POLICY = "policy"
    """The model's own actions: it counts for its score."""
    TASK = "task"
    """The task's data are broken: an image without the dependencies of its check, a failing setup."""
    INFRA = "infra"
    """The sandbox, the stream or this library: the episode is not scored."""
    PROVIDER = "provider"
    """A service behind the sandbox: a registry, a cloud, a model endpoint."""
    CONFIG = "config"
    """The caller's arguments or settings are invalid."""
    BUDGET = "budget"
    """A limit of time, tokens or money that the caller set was reached."""
    CANCELLED = "cancelled"
    """The caller cancelled it."""


def _restore(error_type: type[ExecError], args: tuple[object, ...], state: dict[str, object]) -> ExecError:
    error = error_type.__new__(error_type)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecError(Exception):
    """Base of all errors that this library defines.

    `cause` is the origin of the failure. `retryable` is True if the same call may succeed on another slot or later.
    `sandbox` is the id of the sandbox and `request_id` the number of the request on its channel, where known.
    """

    default_cause: ClassVar[ErrorCause] = ErrorCause.INFRA
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        cause: ErrorCause | None = None,
        retryable: bool | None = None,
        sandbox: str | None = None,
        request_id: int | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = self.default_cause if cause is None else cause
        self.retryable = self.default_retryable if retryable is None else retryable
        self.sandbox = sandbox
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


class ConfigError(ExecError, ValueError):
    """Raised before anything is started, for an invalid request.

    Examples are an unknown name (the message names the nearest valid one), a value out of range, or options that
    exclude each other.
    """

    default_cause = ErrorCause.CONFIG


class BackendUnavailable(ExecError):
    """Raised when a backend cannot be used here: not installed, no daemon, no credentials.

    The message ends with a command that fixes it. If `retryable`, the backend worked before and is unavailable for now,
    or did not answer in time, which proves nothing; the cause is then `infra`.
    """

    default_cause = ErrorCause.CONFIG


class LaunchError(ExecError):
    """Raised when a sandbox could not be started, or its runner did not answer."""

    default_retryable = True


class ImageError(LaunchError):
    """Raised when the image of a sandbox is not available.

    The image is missing and may not be pulled, the registry denied access, or it is for another platform. If the
    registry cannot be reached, `cause` is `provider`, and a retry may succeed.
    """

    default_cause = ErrorCause.CONFIG
    default_retryable = False


class LaunchTimeout(LaunchError, TimeoutError):
    """Raised when a sandbox is not ready within `launch_timeout_s`, or its image not within `pull_timeout_s`."""


class QuotaExceeded(LaunchError):
    """Raised when the provider refuses one more sandbox: quota, rate limit, no room on any node, no free GPU."""

    default_cause = ErrorCause.PROVIDER


class IsolationError(LaunchError):
    """Raised when the isolation of a slot is below `min_isolation`.

    The message explains for each higher level why it is not available.
    """

    default_cause = ErrorCause.CONFIG
    default_retryable = False


class AcquireTimeout(ExecError, TimeoutError):
    """Raised when no slot became free in time; the message names the reason for the wait."""

    default_cause = ErrorCause.BUDGET
    default_retryable = True


@dataclass(frozen=True, slots=True)
class PostMortem:
    """The known facts about the end of a sandbox.

    `suspect` is who ended it: `tenant` (only the holder of the sandbox can have), `outside` (removed, stopped, host out
    of memory) or `unknown`. `log_tail` is the end of the runner's own log.
    """

    reason: str
    exit_code: int | None = None
    oom: bool = False
    log_tail: str = ""
    suspect: Suspect = "unknown"


class SandboxDied(ExecError):
    """Raised by the call under way, and by each later one, when the sandbox has ended.

    `post_mortem` holds the known facts about its end. `cause` is `policy` if the holder of the sandbox ended it, else
    `infra`.
    """

    default_retryable = True

    def __init__(
        self,
        message: str,
        *,
        post_mortem: PostMortem | None = None,
        cause: ErrorCause | None = None,
        retryable: bool | None = None,
        sandbox: str | None = None,
        request_id: int | None = None,
    ) -> None:
        if cause is None and post_mortem is not None and post_mortem.suspect == "tenant":
            cause = ErrorCause.POLICY
        super().__init__(message, cause=cause, retryable=retryable, sandbox=sandbox, request_id=request_id)
        self.post_mortem = post_mortem


class HostDiskFull(ExecError):
    """Raised when others have filled a disk of the slot; another sandbox may have room.

    A disk that the slot shares with others is nearly full, or a quota is used up, and the slot's own files are few. The
    runner measures both from outside the slot.
    """

    default_retryable = True


class ChannelLost(ExecError, ConnectionError):
    """Raised when the stream into the sandbox was lost before the request was sent, and not restored in time.

    The request did not run.
    """

    default_retryable = True


class OutcomeUnknown(ExecError):
    """Raised when a request was sent and its answer is lost: it may have run.

    `__cause__` is the SandboxDied or ChannelLost.
    """


class ProtocolError(ExecError):
    """Raised when a sandbox violates the protocol.

    The sandbox is destroyed, because none of its answers can be trusted.
    """


class SlotClosed(ExecError):
    """Raised by calls on a slot that was released, reset or reclaimed, also by calls under way."""

    default_cause = ErrorCause.CANCELLED


class SlotBusy(ExecError):
    """Raised when a call or a process of a slot prevents a checkpoint. Nothing has changed."""

    default_cause = ErrorCause.POLICY
    default_retryable = True


class CheckpointLost(ExecError):
    """Raised when a checkpoint is used whose sandbox has ended."""


class CommandResult(Protocol):
    """The fields of a failed command's result that its error needs; `RunResult` has them all."""

    @property
    def exit_code(self) -> int: ...  # noqa: D102
    @property
    def signal(self) -> int | None: ...  # noqa: D102
    @property
    def timed_out(self) -> bool: ...  # noqa: D102
    @property
    def oom_killed(self) -> bool: ...  # noqa: D102
    @property
    def duration_s(self) -> float: ...  # noqa: D102
    @property
    def stdout(self) -> str: ...  # noqa: D102
    @property
    def stderr(self) -> str: ...  # noqa: D102
    @property
    def request_id(self) -> int | None: ...  # noqa: D102


class CommandFailed(ExecError):
    """Raised only by `check=True` and `RunResult.check()`, when the command failed. `result` is the whole result."""

    default_cause = ErrorCause.POLICY

    def __init__(self, result: CommandResult) -> None:
        super().__init__(_describe_failure(result), request_id=result.request_id)
        self.result = result


class OutputLimitExceeded(ExecError):
    """Raised by `files` calls, when there is more output than their limit allows."""

    default_cause = ErrorCause.POLICY


def _describe_failure(result: CommandResult) -> str:
    if result.timed_out:
        text = f"command timed out after {result.duration_s:.1f} s"
    elif result.oom_killed and result.signal is not None:
        text = "command was killed because memory ran out"
    elif result.signal is not None:
        text = f"command was ended by signal {result.signal}"
    else:
        text = f"command failed with exit code {result.exit_code}"
        if result.oom_killed:
            text += "; the kernel killed a process of it because memory ran out"
    tail = result.stderr.strip()[-500:]
    return f"{text}: {tail}" if tail else text
