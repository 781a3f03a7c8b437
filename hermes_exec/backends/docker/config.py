"""The options of the Docker backend."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from hermes_exec.backends.helpers import HelpedConfig
from hermes_exec.config.model import Volume, check_text

Megabytes = Annotated[int, Field(gt=0, le=2**43)]
Seconds = Annotated[float, Field(gt=0)]
T = TypeVar("T")


class DockerConfig(HelpedConfig):
    """Sandboxes as containers of a Docker engine (or of Podman's Docker-compatible socket)."""

    backend: ClassVar[str] = "docker"

    image: str | None = None
    """Image of sandboxes if the pool and the profile name none. `dockerfile:DIR` builds the directory with its
    `Dockerfile`, once for the same content.
    """
    pull_policy: Literal["missing", "always", "never"] = "missing"
    """Whether an image is fetched: if it is missing, before the first sandbox of each pool, or never. The image of a
    directory is built if it is missing, unless this is `never`.
    """
    platform: str | None = None
    """Platform of the image, such as `linux/arm64`; None for the engine's own."""
    docker_config: str | None = None
    """Path of the Docker configuration with registry credentials; None for Docker's usual path."""

    base_url: str | None = None
    """Address of the engine (`unix:///…`, or `tcp://…` without TLS); None for the address that the Docker SDK finds."""
    api_timeout_s: Seconds = 60.0
    """Longest time for one answer of the engine."""
    runner_delivery: Literal["auto", "bind", "copy"] = "auto"
    """How the runner gets into the container: by a read-only bind mount, or copied into each. `auto` uses the mount if
    the engine shares this host's files, else the copy.
    """

    user: str | None = None
    """User of the container, like Docker's `--user`. None: the container is root's, and commands run as the image's
    USER. A user other than root excludes slots of their own uid and `user="root"`.
    """
    groups: tuple[str, ...] = ()
    """Additional groups of the container's user."""
    cap_drop: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    """For example `no-new-privileges` or `seccomp=unconfined`."""
    privileged: bool = False
    read_only: bool = False
    """Mount the image read-only; the slots' directories are in a volume and stay writable."""
    runtime: str | None = None
    """OCI runtime, such as `runsc`."""
    cgroupns: Literal["host", "private"] | None = None
    sysctls: dict[str, str] = Field(default_factory=dict)
    devices: tuple[str, ...] = ()
    """Devices of the host, such as `/dev/fuse` or `/dev/fuse:/dev/fuse:rwm`."""
    gpus: int | Literal["all"] | None = None
    """Number of GPUs, or all."""

    memory_swap_mb: Annotated[int, Field(ge=-1)] | None = None
    """Memory and swap together, -1 for no limit; None: as much as `limits.memory_mb`, so no swap."""
    shm_size_mb: Megabytes | None = None
    """Size of `/dev/shm`; None for Docker's 64 MiB."""
    cpuset_cpus: str | None = None
    """Processors that may be used, such as `0-3,8`."""
    ulimits: dict[str, int | tuple[int, int]] = Field(default_factory=dict)
    """Resource limits by name, such as `{"nofile": 1024}`, or pairs of soft and hard."""
    oom_kill_disable: bool = False
    device_read_bps: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    """Bytes a second that may be read, by device of the host."""
    device_write_bps: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)

    network_mode: str | None = None
    """`bridge`, `host`, or the name of a network; not with `network=False`."""
    dns: tuple[str, ...] = ()
    extra_hosts: dict[str, str] = Field(default_factory=dict)
    """Further entries of `/etc/hosts`: name to address."""
    hostname: str | None = None

    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the container itself. Its metadata shows it: secrets belong in the pool's `secrets`."""
    volumes: tuple[Volume, ...] = ()
    """Mounts as `source:target` or `source:target:ro`; the source is a path of the engine's host or a volume."""
    shared_volumes: tuple[Volume, ...] = ()
    """Like `volumes`, but all slots write to them. Of `volumes`, a slot with its own root has a private view, which
    ends with the slot.
    """
    tmpfs: dict[str, str] = Field(default_factory=dict)
    """Mounts in memory: path to options, such as `{"/scratch": "size=64m,exec"}`."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Further labels of the container."""

    @field_validator("*")
    @classmethod
    def _texts(cls, value: T, info: ValidationInfo) -> T:
        if info.field_name != "docker_config":  # a path of this host may have any bytes
            check_text(value)
        return value

    @field_validator("tmpfs")
    @classmethod
    def _tmpfs(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value:
            if not path.startswith("/"):
                raise ValueError(f"{path!r} is not an absolute path")
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("hermes-exec."):
                raise ValueError(f"the label {name!r} is this library's own")
        return value
