"""The options of the SSH backend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from hermes_exec.backends.helpers import HelpedConfig
from hermes_exec.backends.host_gpus import GPUConfig
from hermes_exec.config.model import AbsolutePath, ConfigModel
from hermes_exec.config.pool import SlotCount

_ADDRESS = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[^]\s]+)\]|(?P<host>[^:@,\s]+))(?::(?P<port>\d{1,5}))?")


class SSHHost(ConfigModel):
    """One host. For None, `ssh_config` or the client's own default decides."""

    host: str
    user: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: str | None = None
    slots: SlotCount | None = None
    """Slots of a sandbox on this host; None for the pool's `slots_per_sandbox`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of the sandboxes, relative to the other hosts' weights."""

    @property
    def name(self) -> str:
        """`[user@]host[:port]`"""
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.user:
            name = f"{self.user}@{name}"
        return f"{name}:{self.port}" if self.port else name

    def claim(self, sandboxes: int) -> tuple[float, int]:
        """Return how well this host suits one more sandbox while it has so many. The host with the greatest value gets
        it.
        """
        return self.weight / (sandboxes + 1), -sandboxes

    @field_validator("host", "user")
    @classmethod
    def _word(cls, value: str | None) -> str | None:
        if value is not None and (not value or value.startswith("-") or re.search(r"\s", value)):
            raise ValueError(f"{value!r} is no name of a host or user")
        return value


def _host(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = _ADDRESS.fullmatch(value)
    if parts is None:
        raise ValueError(
            f"{value!r} is not [user@]host[:port]; several are a list, an IPv6 address is written as [::1]"
        )
    return {"host": parts["v6"] or parts["host"], "user": parts["user"], "port": parts["port"]}


def _hosts(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


class SSHConfig(HelpedConfig, GPUConfig):
    """Sandboxes as process trees on other hosts, reached by SSH."""

    backend: ClassVar[str] = "ssh"
    default_slots: ClassVar[int] = 64

    hosts: Annotated[
        tuple[Annotated[SSHHost, BeforeValidator(_host)], ...],
        BeforeValidator(_hosts, json_schema_input_type=str | SSHHost | tuple[str | SSHHost, ...]),
        Field(min_length=1),
    ]
    """One host or several: `"[user@]host[:port]"`, or `{host, user, port, identity_file, slots, weight}`."""
    transport: Literal["auto", "openssh", "paramiko"] = "auto"
    """`auto`: the system's OpenSSH client if there is one, else paramiko."""
    identity_file: str | None = None
    """Private key; None for the client's own keys and the agent's."""
    passphrase: SkipJsonSchema[Callable[[], str]] | None = Field(default=None, exclude=True, repr=False)
    """A function that returns the passphrase of the key (in Python only). Nothing ever prompts on a terminal."""
    known_hosts: str | None = None
    """File of host keys; None for the client's own. With `accept-new`, new keys are written there."""
    host_keys: Literal["strict", "accept-new"] = "strict"
    """Whether an unknown host's key is accepted and kept. A changed key never is."""
    ssh_config: str | None = None
    """Configuration of the client; None for `~/.ssh/config` and the system's."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 15.0
    readonly_paths: tuple[AbsolutePath, ...] = ()
    """Further absolute paths of the host that slots may read, besides the system's."""
    base_dir: AbsolutePath | None = None
    """Directory of the host in which each sandbox makes its own private directory; None for its `$TMPDIR`, `/tmp` or
    `/var/tmp`.
    """
    cache_dir: AbsolutePath | None = None
    """Private directory of the host for the runner; None for the first with room for it: `~/.cache/hermes-exec`, then
    one below `/var/tmp`, `/tmp` or `/dev/shm`.
    """

    @property
    def default_max_sandboxes(self) -> int:
        """See `BackendConfig`: the number of hosts."""
        return len(self.hosts)

    def sizes(self, sandboxes: int, slots: int) -> Mapping[int, int]:
        """See `BackendConfig`."""
        if not any(host.slots for host in self.hosts):
            return super().sizes(sandboxes, slots)
        return Counter(host.slots or slots for host in self.place(sandboxes))

    def place(self, sandboxes: int) -> Iterator[SSHHost]:
        """Return the hosts of so many sandboxes, while all hosts answer."""
        return islice(self._placements(), sandboxes)

    def each_host(self) -> Mapping[str, Mapping[str, Any]]:
        """See `BackendConfig`."""
        return {host.name: {"hosts": host} for host in self.hosts} if len(self.hosts) > 1 else {}

    def _placements(self) -> Iterator[SSHHost]:
        """Yield the host of one sandbox after the other, while all hosts answer."""
        sandboxes = Counter(dict.fromkeys(range(len(self.hosts)), 0))
        while True:
            best = max(sandboxes, key=lambda index: self.hosts[index].claim(sandboxes[index]))
            sandboxes[best] += 1
            yield self.hosts[best]

    @field_validator("hosts")
    @classmethod
    def _different(cls, hosts: tuple[SSHHost, ...]) -> tuple[SSHHost, ...]:
        names = [host.name for host in hosts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is named twice; weight= gives a host more sandboxes than others")
        return hosts
