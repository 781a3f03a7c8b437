"""Configuration of a pool and of its profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from hermes_exec.config.browser import BrowserConfig
from hermes_exec.config.limits import Limits
from hermes_exec.config.model import ConfigModel, nearest
from hermes_exec.errors import ConfigError
from hermes_exec.results import IsolationLevel, SlotRoot

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
SlotCount = Annotated[int, Field(ge=1, le=10_000)]
CheckpointDiskMB = Annotated[int, Field(ge=1, le=1 << 30)]
RunnerMemoryMB = Annotated[int, Field(ge=16, le=1 << 20)]
Commands = str | tuple[str, ...]
_JOINED = ("env", "secrets", "files", "profiles", "backend_options")


def _file_source(value: object) -> object:
    if not isinstance(value, bytes | str | Path):
        raise ValueError(f"it must be bytes (the content) or the path of a local file, not {value!r:.80}")
    return value


def check_workdir(value: object) -> str:
    """Return the value if calls can start there, else raise ValueError."""
    if not isinstance(value, str) or (value != "image" and not value.startswith("/")) or "\0" in value:
        raise ValueError(f"'image' (the image's WORKDIR) or an absolute path in the slot, not {value!r:.80}")
    return value


Workdir = Annotated[str, AfterValidator(check_workdir)]

FileSource = Annotated[bytes | str | Path, BeforeValidator(_file_source)]
"""Content as bytes, or the path of a local file or directory."""


class ProfileConfig(ConfigModel):
    """The options of a profile; an option that is not set has the pool's value."""

    image: str | None = None
    slots_per_sandbox: SlotCount | None = None
    min_sandboxes: Count | None = None
    max_sandboxes: AtLeastOne | None = None
    min_isolation: IsolationLevel | None = None
    network: bool | None = None
    limits: Limits | None = None
    slot_limits: Limits | None = None
    best_effort_limits: bool | None = None
    env: dict[str, str] | None = None
    secrets: dict[str, SecretStr] | None = None
    files: dict[str, FileSource] | None = None
    slot_root: SlotRoot | None = None
    workdir: Workdir | None = None
    setup: Commands | None = None
    """Commands that run once a sandbox, before its first slot is acquired."""
    slot_setup: Commands | None = None
    """Commands that run at each acquire, before the slot is returned."""
    idle_timeout_s: Seconds | None = None
    max_lifetime_s: Seconds | None = None
    runner_memory_mb: RunnerMemoryMB | None = None
    checkpoint_disk_mb: CheckpointDiskMB | None = None
    backend_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Options of the backend that differ from the pool's. The repr omits them: only the backend knows which are
    secrets.
    """

    @field_validator("env", "secrets")
    @classmethod
    def _environment(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return check_environment(value)


class PoolConfig(ConfigModel):
    """A pool, without the options of its backend. Times are in seconds; None for no bound, or for the backend's
    default.
    """

    backend: str = "local"
    image: str | None = None
    slots_per_sandbox: SlotCount | None = None
    """None: 64 on local and ssh, 8 on nomad and modal, 1 elsewhere."""
    min_sandboxes: Count = 0
    max_sandboxes: AtLeastOne | None = None
    """None: 1 on local, on ssh the number of hosts, 4 elsewhere."""
    profiles: dict[str, ProfileConfig] = Field(default_factory=dict)
    min_isolation: IsolationLevel | None = None
    """The lowest accepted isolation level. None: `landlock`."""
    network: bool = True
    limits: Limits = Field(default_factory=Limits)
    slot_limits: Limits = Field(default_factory=Limits)
    best_effort_limits: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretStr] = Field(default_factory=dict)
    files: dict[str, FileSource] = Field(default_factory=dict)
    slot_root: SlotRoot | None = None
    """`own`: each slot has a root of its own over the image, like a container; `shared`: the root of its sandbox."""
    workdir: Workdir | None = None
    """Directory in which calls start and relative paths begin: an absolute path in the slot, or `image` for the image's
    WORKDIR; None for the slot's workspace.
    """
    browser: BrowserConfig = Field(default_factory=BrowserConfig)
    """Rules for the browser tools."""
    setup: Commands = ()
    slot_setup: Commands = ()
    acquire_timeout_s: Seconds = 300.0
    disk_wait_s: Seconds | None = None
    """How long requests wait for room on a disk if no slot of theirs is in use; None: up to `acquire_timeout_s`."""
    launch_timeout_s: Seconds = 120.0
    pull_timeout_s: Seconds = 600.0
    shutdown_timeout_s: Seconds = 30.0
    lease_s: Annotated[float, Field(gt=0, le=1e7)] = 60.0
    idle_timeout_s: Seconds = 120.0
    max_lifetime_s: Seconds | None = None
    runner_memory_mb: RunnerMemoryMB = 256
    """Memory of a sandbox's runner for output and calls under way, in MiB; at most an eighth of the sandbox's
    memory.
    """
    checkpoint_disk_mb: CheckpointDiskMB | None = None
    """Disk that the checkpoints of a sandbox and their forks' layers may take, in MiB; None for no limit."""
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Letters, digits and `._-`, at most 64; None for a random one."""
    note: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")] = ""
    """A line of text about the run, for `hermes-exec ps`. Everybody who sees the sandboxes may read it."""

    @field_validator(
        "profiles", "limits", "slot_limits", "env", "secrets", "files", "setup", "slot_setup", "browser", mode="before"
    )
    @classmethod
    def _none_is_empty(cls, value: object, info: ValidationInfo) -> object:
        if value is None:
            return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)
        return value

    @field_validator("env", "secrets")
    @classmethod
    def _environment(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_environment(value) or {}

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.max_sandboxes is not None and self.min_sandboxes > self.max_sandboxes:
            raise ValueError(f"min_sandboxes {self.min_sandboxes} is above max_sandboxes {self.max_sandboxes}")
        return self


def with_profile(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options of a pool with a profile's on top. Options that the profile does not set, or sets to None, are
    the pool's. `profiles` is kept.

    Raises:
        ConfigError: If there is no such profile.
    """
    profiles = values.get("profiles") or {}
    if not isinstance(profiles, Mapping) or name not in profiles:
        raise ConfigError(f"there is no profile {name!r}; {nearest(name, profiles)}")
    return merge_options(values, {key: value for key, value in dict(profiles[name] or {}).items() if value is not None})


def merge_options(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a pool with others on top. `env`, `secrets`, `files`, `profiles` and `backend_options` are
    merged.
    """
    both = {key: (values.get(key), own.get(key)) for key in _JOINED}
    joined = {
        key: {**common, **more}
        for key, (common, more) in both.items()
        if isinstance(common, Mapping) and isinstance(more, Mapping)
    }
    return {**values, **own, **joined}


def check_environment(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the mapping if its names and values are valid for environment variables, else raise ValueError."""
    for name, content in (value or {}).items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        text = content.get_secret_value() if isinstance(content, SecretStr) else content
        if "\0" in text:
            raise ValueError(f"the value of {name!r} has a NUL byte")
    return value
