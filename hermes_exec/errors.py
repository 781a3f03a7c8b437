"""The error model: one tree, and for each class when it is raised.

Trouble that a tool meets (a failing command, a timeout, a missing file) is a result. What stands here is trouble with
the caller's configuration, with this library, with the sandbox or with its provider. Every error says whose fault it is
(``cause``), so that an episode can be scored or dropped without reading messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, Protocol

Suspect = Literal["tenant", "outside", "unknown"]


class ErrorCause(StrEnum):
    """Whose fault something is; the same words in errors, episodes and reports."""

    POLICY = "policy"
    """The model's own doing: it counts for its score."""
    TASK = "task"
    """The task's data are broken: an image that lacks what its check needs, a failing set-up."""
    INFRA = "infra"
    """The sandbox, the stream or this library: the episode is not scored."""
    PROVIDER = "provider"
    """A service behind the sandbox: a registry, a cloud, a model endpoint."""
    CONFIG = "config"
    """The caller asked for something that cannot be."""
    BUDGET = "budget"
    """A limit of time, tokens or money that the caller set was reached."""
    CANCELLED = "cancelled"
    """The caller called it off."""


def _restore(error_type: type[ExecError], args: tuple[object, ...], state: dict[str, object]) -> ExecError:
    error = error_type.__new__(error_type)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecError(Exception):
    """Base of every error that this library raises on its own account.

    ``cause`` says whose fault it is, ``retryable`` whether the same call may succeed on another slot or later,
    ``sandbox`` is the id of the sandbox and ``request_id`` the number of the request on its channel, where one is
    known.
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
    """Raised before anything is started, when the caller asks for what cannot be: an unknown name (the nearest valid
    one is named), a value out of range, options that exclude each other.
    """

    default_cause = ErrorCause.CONFIG


class BackendUnavailable(ExecError):
    """Raised when a backend cannot be used here: not installed, no daemon, no credentials. The message ends with the
    command that mends it. One that is ``retryable`` says that it was there and is away for now, or that it did not
    answer in time, which proves nothing; its cause is ``infra``.
    """

    default_cause = ErrorCause.CONFIG


class LaunchError(ExecError):
    """Raised when a sandbox could not be started, or its runner did not answer."""

    default_retryable = True


class ImageError(LaunchError):
    """Raised when the image of a sandbox cannot be had: it is missing and may not be pulled, the registry denied it, or
    it is not for this platform. ``cause`` is ``provider``, and another try may succeed, where the registry is not to be
    had.
    """

    default_cause = ErrorCause.CONFIG
    default_retryable = False


class LaunchTimeout(LaunchError, TimeoutError):
    """Raised when a sandbox did not become ready within ``launch_timeout_s``, or its image was not there within
    ``pull_timeout_s``.
    """


class QuotaExceeded(LaunchError):
    """Raised when the provider refuses one more sandbox: quota, rate limit, no room on any node."""

    default_cause = ErrorCause.PROVIDER


class IsolationError(LaunchError):
    """Raised when a slot cannot be isolated as well as ``min_isolation`` asks for; the message says why each higher
    level is not available.
    """

    default_cause = ErrorCause.CONFIG
    default_retryable = False


class AcquireTimeout(ExecError, TimeoutError):
    """Raised when no slot became free within the caller's time; the message says what the pool was waiting for."""

    default_cause = ErrorCause.BUDGET
    default_retryable = True


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is known about the end of a sandbox.

    ``suspect`` says who ended it: ``tenant`` (only the sandbox's own tenant can have), ``outside`` (removed, stopped,
    host out of memory), ``unknown``. ``log_tail`` is the end of the runner's own log.
    """

    reason: str
    exit_code: int | None = None
    oom: bool = False
    log_tail: str = ""
    suspect: Suspect = "unknown"


class SandboxDied(ExecError):
    """Raised by the call under way and by each later one when the sandbox has ended. ``post_mortem`` says what is known
    about its end.

    ``cause`` is ``policy`` when the sandbox's own tenant ended it, else ``infra``.
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
    """Raised when a disk that a slot shares with others is nearly full, or a quota is used up, and the slot's own files
    are few: the runner has measured both from outside of the slot. Another sandbox may have room.
    """

    default_retryable = True


class ChannelLost(ExecError, ConnectionError):
    """Raised when the stream into the sandbox is gone and was not restored in time, and the request had not been sent:
    it did not run.
    """

    default_retryable = True


class OutcomeUnknown(ExecError):
    """Raised when a request was sent and its answer can no longer be had: it may have run. ``__cause__`` is the
    SandboxDied or ChannelLost.
    """


class ProtocolError(ExecError):
    """Raised when a sandbox sent what the protocol forbids. The sandbox is destroyed: nothing that it says can be
    believed.
    """


class SlotClosed(ExecError):
    """Raised by calls on a slot that was released, reset or taken back, also by those under way at that moment."""

    default_cause = ErrorCause.CANCELLED


class CommandResult(Protocol):
    """What is read of the result of a command that failed; `RunResult` has all of it."""

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
    """Raised only by ``check=True`` and ``RunResult.check()``, when the command did not succeed. ``result`` is the
    whole result.
    """

    default_cause = ErrorCause.POLICY

    def __init__(self, result: CommandResult) -> None:
        super().__init__(_describe_failure(result), request_id=result.request_id)
        self.result = result


class OutputLimitExceeded(ExecError):
    """Raised only by ``files.read_*`` and ``files.download``, when there is more than ``limit_bytes``."""

    default_cause = ErrorCause.POLICY


def _describe_failure(result: CommandResult) -> str:
    if result.timed_out:
        text = f"command timed out after {result.duration_s:.1f} s"
    elif result.oom_killed and result.signal is not None:
        text = "command was ended for lack of memory"
    elif result.signal is not None:
        text = f"command was ended by signal {result.signal}"
    else:
        text = f"command failed with exit code {result.exit_code}"
        if result.oom_killed:
            text += ", a process of it was ended for lack of memory"
    tail = result.stderr.strip()[-500:]
    return f"{text}: {tail}" if tail else text
