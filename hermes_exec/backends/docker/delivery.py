"""Delivery of the runner into a container, and of its stream out of it.

If the engine shares this host's files, the runner is a bind mount and connects to a socket in a mounted directory.
Otherwise it is copied into each container, and streams go through the daemon.
"""

from __future__ import annotations

import io
import logging
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_exec.aio.peers import has_peer_credentials
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import BASE_DIR, RUNNER, STATE_DIR
from hermes_exec.backends.docker.dial_socket import DialSocket
from hermes_exec.backends.runner_binary import RunnerBinary
from hermes_exec.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.errors import APIError

logger = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 5.0
"""How long a container's main process may take to connect."""
MAX_MISSES = 3
"""Consecutive containers of this host's kernel that did not connect in time: one or two may have been slow."""
DIRECT_RUNTIMES = (None, "runc", "crun", "youki")
"""Other runtimes (gVisor, Kata) have their own kernel, which cannot connect to a socket of this host."""


class NotShared(Exception):
    """Raised when the engine does not see this host's files, and the runner has to be copied."""


class DeliveryPlan(NamedTuple):
    """Delivery for one container: the mounts that bring the runner, and the socket that it connects to, if any."""

    mounts: list[dict[str, Any]]
    dial_socket: DialSocket | None


class Delivery:
    """Detects once for each engine, by a trial, whether it shares this host's files.

    The first container is made as if it did. The proof is a connection of its main process, known by its pid.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._auto = config.runner_delivery == "auto"
        self._dials = config.runtime in DIRECT_RUNTIMES and has_peer_credentials()
        self._shares: bool | None = None if self._auto else config.runner_delivery == "bind"
        self._called = False  # a runner has connected
        self._misses = 0

    @property
    def _binds(self) -> bool:
        return self._dials if self._shares is None else self._shares

    @contextmanager
    def open(self, runner: RunnerBinary) -> Iterator[DeliveryPlan]:
        """Return the plan for one container. Its socket closes with the block."""
        dial_socket = self._dial_socket() if self._binds and self._dials else None
        try:
            yield DeliveryPlan([_bind(runner)] if self._binds else [], dial_socket)
        finally:
            if dial_socket is not None:
                dial_socket.close()

    def _dial_socket(self) -> DialSocket | None:
        try:
            return DialSocket()
        except (OSError, ConfigError) as error:
            self._give_up(f"no socket can be made: {error}")
            return None

    def _give_up(self, why: str) -> None:
        self._dials = False
        logger.info("streams into containers go through the daemon: %s", why)

    def prepare(self, client: DockerClient, container: str, plan: DeliveryPlan, runner: RunnerBinary) -> None:
        """Put missing files into the volume of the created container, before it starts."""
        entries = []
        if self._config.user:
            # A new volume belongs to root: a runner of another user makes its own directory in this one.
            entries.append(ArchiveEntry(BASE_DIR.removeprefix(f"{STATE_DIR}/"), 0o1777, None))
        if not plan.mounts:
            entries.append(ArchiveEntry(RUNNER.removeprefix(f"{STATE_DIR}/"), 0o755, runner.path.read_bytes()))
        if entries and not client.api.put_archive(container, STATE_DIR, archive(*entries)):
            raise LaunchError(f"Docker did not take the runner into {STATE_DIR} of the container")

    def accept(self, client: DockerClient, container: str, plan: DeliveryPlan) -> socket.socket | None:
        """Wait for the connection of a started container's main process; blocking. None: use the daemon's stream.

        Raises:
            NotShared: If it does not connect, no other container has, and it is not of this host or several containers
                were late.
        """
        if plan.dial_socket is None:
            return None
        pid = int(client.api.inspect_container(container)["State"]["Pid"])
        caller = plan.dial_socket.accept(pid, CONNECT_TIMEOUT_S)
        if caller is not None:
            self._shares = self._called = True
            self._misses = 0
            return caller
        self._misses += 1
        if self._misses < MAX_MISSES and _serves_here(pid):
            return None  # the runner is slow: its stream goes through the daemon
        if not self._called:
            self._give_up("the runner did not connect")
        if self._auto and not self._shares:
            self._shares = False
            raise NotShared
        return None

    def disproves_sharing(self, error: APIError, plan: DeliveryPlan, runner: RunnerBinary) -> bool:
        """Return whether an engine's failure to make or start a container proves that it does not see this host's
        files.
        """
        if not self._auto or self._shares or plan.dial_socket is None:
            return False
        ours = (RUNNER, str(runner.path.resolve()), str(plan.dial_socket.directory))
        if not any(path in str(error.explanation) for path in ours):
            return False
        self._shares = False
        return True


def _serves_here(pid: int) -> bool:
    """Return whether a process of this host is a runner. Then its container has this host's files, however slow
    it is.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"{RUNNER}\0serve\0".encode())
    except OSError:
        return False


def _bind(runner: RunnerBinary) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(runner.path.resolve()), "Target": RUNNER, "ReadOnly": True}


class ArchiveEntry(NamedTuple):
    """A file, or a directory if its content is None."""

    name: str
    mode: int
    content: bytes | None


def archive(*entries: ArchiveEntry) -> bytes:
    """Return a tar archive of root's files, as the engine takes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode, content in entries:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.mode, info.size = mode, len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()
