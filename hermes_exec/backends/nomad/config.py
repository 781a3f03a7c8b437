"""The options of the Nomad backend."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.model import AbsolutePath, ConfigModel, Volume

OURS = frozenset({"args", "command", "entrypoint", "image", "image_pull_timeout", "pids_limit", "volumes"})
"""Options of a task of the docker driver that this library sets."""


def address_of(text: str) -> str:
    """Return an address without a slash at its end.

    Raises:
        ValueError: If it is not an address.
    """
    address = text.strip().rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text!r} is no address of Nomad: it begins with http:// or https:// and the name of a host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the address of Nomad has a user, a query or a fragment: it takes a token, and none of these")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{text!r} is no address of Nomad: its port is none") from None
    return address


class NomadConstraint(ConfigModel):
    """Nodes that can have a sandbox, like Nomad's block `constraint`."""

    attribute: str | None = None
    """For example `${attr.cpu.arch}`, `${node.class}` or `${meta.disk}`; some operators have none."""
    operator: str = "="
    value: str | None = None


class NomadResources(ConfigModel):
    """Resources that a sandbox reserves besides `limits`."""

    cores: Annotated[int, Field(gt=0)] | None = None
    """Processors that no other task gets."""
    memory_max: Annotated[int, Field(ge=-1)] | None = None
    """MiB that a sandbox may use if its node has them free, while it reserves `limits.memory_mb`; -1 for all. The
    scheduler has to allow memory oversubscription.
    """
    disk: Annotated[int, Field(gt=100)] = 300
    """MiB of the node's disk to reserve; nothing enforces them. Nomad's minimum is above 100, which it counts for
    logs.
    """
    devices: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    """Devices by Nomad's names, and how many, such as `{"nvidia/gpu": 2}`."""


class NomadConfig(BackendConfig):
    """Sandboxes as jobs of a Nomad cluster, one each."""

    backend: ClassVar[str] = "nomad"
    default_slots: ClassVar[int] = 8

    image: str | None = None
    """Image of sandboxes if the pool and the profile name none, as the driver on the nodes knows it."""
    driver: Literal["docker", "singularity"] = "docker"
    """`singularity`: Apptainer, which Nomad's driver `raw_exec` starts."""

    address: str | None = None
    """Address of a server or agent, such as `https://nomad.example.org:4646`. None, here and in the three options
    below: the setting that `python-nomad` finds (`NOMAD_ADDR`, `NOMAD_TOKEN`, …), else this host's agent.
    """
    token: SecretStr | None = None
    """ACL token; docs/backends.md has its policy."""
    namespace: str | None = None
    region: str | None = None
    ca_cert: AbsolutePath | None = None
    """File with the certificate authority of an `https` address; None for the system's."""
    client_cert: AbsolutePath | None = None
    client_key: AbsolutePath | None = None
    api_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Longest time for one answer of Nomad."""
    allow_open_api: bool = False
    """Allow slots with a `min_isolation` on a cluster without ACLs too, where each task can control all of it."""

    datacenters: tuple[str, ...] = ("*",)
    node_pool: str | None = None
    constraints: tuple[NomadConstraint, ...] = ()
    priority: Annotated[int, Field(ge=1, le=32766)] | None = None
    resources: NomadResources = NomadResources()
    gpus: Annotated[int, Field(gt=0)] | Annotated[str, Field(pattern=r"^.+:[1-9]\d*$")] | None = None
    """Number of NVIDIA GPUs, or Nomad's name of a device with a number, such as `nvidia/gpu/Tesla T4:2`."""

    runner_delivery: Literal["exec", "bind", "artifact"] = "exec"
    """How the runner gets into a sandbox: through Nomad's exec, for which the image needs a shell; mounted from
    `runner_source`; or fetched from there by the node, with its checksum.
    """
    runner_source: str | None = None
    """For `bind` the path of the runner on each node (None: as on this host), for `artifact` its URL."""
    purge_on_start: bool = False
    """End and remove leftovers of other pools with the same `run_id` before the first sandbox: on this host only those
    without a driver, on other hosts all.
    """
    purge_on_shutdown: bool = True
    """Remove the jobs of ended sandboxes. Otherwise Nomad keeps them, as `dead`, until its garbage collection."""

    user: str | None = None
    """User of the container. None: root, and slots have users of their own."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables of the sandbox."""
    volumes: tuple[Volume, ...] = ()
    """Paths of the node in the sandbox, as `source:target` or `source:target:ro`."""
    docker: dict[str, Any] = Field(default_factory=dict)
    """Further options of the task, by the names of Nomad's docker driver, such as `{"shm_size": 268435456}`. The
    password in `auth` is a secret here.
    """
    binary: str = "apptainer"
    """Name or path of Apptainer on the nodes; with `driver="singularity"`."""

    @property
    def devices(self) -> dict[str, int]:
        """The devices of `resources` and `gpus`."""
        if self.gpus is None:
            return self.resources.devices
        gpus = self.gpus if isinstance(self.gpus, str) else f"nvidia/gpu:{self.gpus}"
        name, _, count = gpus.rpartition(":")
        return {**self.resources.devices, name: int(count)}

    @field_validator("address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return None if value is None else address_of(value)

    @field_validator("docker")
    @classmethod
    def _docker(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(OURS & value.keys())
        if taken:
            raise ValueError(f"{taken[0]!r} is set by this library")
        login = value.get("auth")
        if isinstance(login, dict) and isinstance(login.get("password"), str):
            value = {**value, "auth": {**login, "password": SecretStr(login["password"])}}
        return value

    @model_validator(mode="after")
    def _source(self) -> NomadConfig:
        if self.runner_delivery == "artifact" and self.runner_source is None:
            raise ValueError("runner_delivery='artifact' needs runner_source, the URL of the runner")
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together")
        return self
