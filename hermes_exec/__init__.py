"""hermes-exec: run an agent's tool calls in isolated slots, the same way on every backend.

Importing this package is cheap: each name is loaded at its first use.
"""

from hermes_exec._lazy import lazy_attributes

TYPE_CHECKING = False  # typing.TYPE_CHECKING without its import: docs/why-not-obvious.md ("Imports at first use")
if TYPE_CHECKING:
    from hermes_exec import blocking as blocking
    from hermes_exec import config as config
    from hermes_exec import errors as errors
    from hermes_exec import results as results
    from hermes_exec import testing as testing
    from hermes_exec import tools as tools
    from hermes_exec import tracing as tracing
    from hermes_exec.backends.docker.config import DockerConfig
    from hermes_exec.backends.local.config import LocalConfig
    from hermes_exec.backends.registry import config_type, config_types
    from hermes_exec.config import BackendConfig, Limits, PoolConfig, ProfileConfig
    from hermes_exec.errors import (
        AcquireTimeout,
        BackendUnavailable,
        ChannelLost,
        CheckpointLost,
        CommandFailed,
        ConfigError,
        ErrorCause,
        ExecError,
        HostDiskFull,
        ImageError,
        IsolationError,
        LaunchError,
        LaunchTimeout,
        OutcomeUnknown,
        OutputLimitExceeded,
        PostMortem,
        ProtocolError,
        QuotaExceeded,
        SandboxDied,
        SlotBusy,
        SlotClosed,
    )
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.results import (
        Abilities,
        Acquired,
        Died,
        FileStat,
        FileWritten,
        Isolation,
        KillReceipt,
        Launched,
        LayerSize,
        PoolEvent,
        PoolStats,
        ProcessInfo,
        PullProgress,
        Quarantined,
        Ready,
        Reaped,
        Reset,
        RunnerMemory,
        RunResult,
        Scaled,
        SearchFile,
        SearchMatch,
        SearchResult,
        SearchSkipped,
        TreeCopied,
        Usage,
    )
    from hermes_exec.slot.checkpoint import Checkpoint
    from hermes_exec.slot.files import Files
    from hermes_exec.slot.network import Connection, ExposedPort, Forward, SlotListener
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.session import Session
    from hermes_exec.slot.slot import Slot

__all__ = [
    "Abilities",
    "AcquireTimeout",
    "Acquired",
    "BackendConfig",
    "BackendUnavailable",
    "ChannelLost",
    "Checkpoint",
    "CheckpointLost",
    "CommandFailed",
    "ConfigError",
    "Connection",
    "Died",
    "DockerConfig",
    "ErrorCause",
    "ExecError",
    "ExposedPort",
    "FileStat",
    "FileWritten",
    "Files",
    "Forward",
    "HostDiskFull",
    "ImageError",
    "Isolation",
    "IsolationError",
    "KillReceipt",
    "LaunchError",
    "LaunchTimeout",
    "Launched",
    "LayerSize",
    "Limits",
    "LocalConfig",
    "OutcomeUnknown",
    "OutputLimitExceeded",
    "PoolConfig",
    "PoolEvent",
    "PoolStats",
    "PostMortem",
    "Process",
    "ProcessInfo",
    "ProfileConfig",
    "ProtocolError",
    "PullProgress",
    "Quarantined",
    "QuotaExceeded",
    "Ready",
    "Reaped",
    "Reset",
    "RunResult",
    "RunnerMemory",
    "SandboxDied",
    "SandboxPool",
    "Scaled",
    "SearchFile",
    "SearchMatch",
    "SearchResult",
    "SearchSkipped",
    "Session",
    "Slot",
    "SlotBusy",
    "SlotClosed",
    "SlotListener",
    "TreeCopied",
    "Usage",
    "config_type",
    "config_types",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        __all__,
        where=(
            "errors",
            "pool.pool",
            "results",
            "config",
            "backends.local.config",
            "backends.docker.config",
            "backends.registry",
            "slot.checkpoint",
            "slot.files",
            "slot.network",
            "slot.process",
            "slot.session",
            "slot.slot",
        ),
        modules=("blocking", "config", "errors", "results", "testing", "tools", "tracing"),
    )
