"""How the runner gets into a container, and its stream out of it: by this host's own files, else by the engine.

Where the engine has our files the runner is a bind mount, and calls us by a socket in a mounted folder. Elsewhere it is
in a volume that is filled once an engine, and streams go through the daemon.
"""

from __future__ import annotations

import hashlib
import io
import logging
import secrets
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_exec.aio.peers import tells_peers
from hermes_exec.backends.base import Labels
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import BASE_DIR, RUNNER, RUNNER_DIR, STATE_DIR
from hermes_exec.backends.docker.dial_socket import DialSocket
from hermes_exec.backends.owner import to_strings
from hermes_exec.backends.runner_binary import RunnerBinary
from hermes_exec.errors import LaunchError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.errors import APIError

logger = logging.getLogger(__name__)
RUNNER_LABEL = "hermes-exec.runner"
PATIENCE_S = 2.0
"""How long a container's main process may take to connect."""
DIRECT_RUNTIMES = (None, "runc", "crun", "youki")
"""Other runtimes (gVisor, Kata) have a kernel of their own, which cannot connect to a socket of this host."""


class NotShared(Exception):
    """The engine does not see our files: the runner has to be brought in a volume."""


class Way(NamedTuple):
    """How one container gets its runner: the mounts that bring it, and the socket by which it calls, if any."""

    mounts: list[dict[str, Any]]
    dial_socket: DialSocket | None


class Delivery:
    """Finds out once an engine, by trying, whether it shares this host's files.

    The first container is made as if it did. That is proven when its main process, known by its pid, connects.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._auto = config.runner_delivery == "auto"
        self._lock = threading.Lock()
        self._dials = config.runtime in DIRECT_RUNTIMES and tells_peers()
        self._shares: bool | None = None if self._auto else config.runner_delivery == "bind"
        self._filled: set[str] = set()

    @property
    def _binds(self) -> bool:
        return self._dials if self._shares is None else self._shares

    @contextmanager
    def open(self, client: DockerClient, image: str, runner: RunnerBinary, labels: Labels) -> Iterator[Way]:
        """The way for one container; its socket is closed with the block."""
        dial_socket = self._dial_socket() if self._binds and self._dials else None
        try:
            mount = _bind(runner) if self._binds else self._volume(client, image, runner, labels)
            yield Way([mount], dial_socket)
        finally:
            if dial_socket is not None:
                dial_socket.close()

    def _dial_socket(self) -> DialSocket | None:
        try:
            return DialSocket()
        except OSError as error:
            self._give_up(f"no socket can be made: {error}")
            return None

    def _give_up(self, why: str) -> None:
        self._dials = False
        logger.info("streams into containers go through the daemon: %s", why)

    def accept(self, client: DockerClient, container: str, way: Way) -> socket.socket | None:
        """The connection of a started container's main process; blocking. None: use the daemon's.

        Raises:
            NotShared: it does not come, and no other has.
        """
        if way.dial_socket is None:
            return None
        caller = way.dial_socket.accept(int(client.api.inspect_container(container)["State"]["Pid"]), PATIENCE_S)
        if caller is not None:
            self._shares = True
            return caller
        self._give_up("the runner did not connect")
        if self._auto and not self._shares:
            self._shares = False
            raise NotShared
        return None

    def refuted(self, error: APIError, way: Way, runner: RunnerBinary) -> bool:
        """Whether an engine's failure to make or start a container shows that it does not see our files."""
        if not self._auto or self._shares or way.dial_socket is None:
            return False
        ours = (RUNNER, str(runner.path.resolve()), str(way.dial_socket.folder))
        if not any(path in str(error.explanation) for path in ours):
            return False
        self._shares = False
        return True

    def _volume(self, client: DockerClient, image: str, runner: RunnerBinary, labels: Labels) -> dict[str, Any]:
        """The volume with the runner, filled where it is not yet. Helpers get ``labels``: should we be killed, they are
        reaped.
        """
        name = f"hermes-exec-runner-{runner.sha256}"
        mount = {"Type": "volume", "Source": name, "Target": RUNNER_DIR}
        with self._lock:
            if name not in self._filled:
                client.api.create_volume(name, labels={RUNNER_LABEL: runner.sha256})
                _fill(client, image, mount, runner, labels)
                self._filled.add(name)
        return {**mount, "ReadOnly": True}

    def prepare(self, client: DockerClient, container: str) -> None:
        """What has to be put into the created container before it starts."""
        owner = _numeric(self._config.user)
        if owner != (0, 0):
            # A new volume belongs to root: the runner of another user gets a directory of its own in it.
            entry = tarfile.TarInfo(BASE_DIR.removeprefix(f"{STATE_DIR}/"))
            entry.type = tarfile.DIRTYPE
            entry.uid, entry.gid, entry.mode = (0, 0, 0o1777) if owner is None else (*owner, 0o711)
            _put(client, container, STATE_DIR, archive_of(entry))


def _numeric(user: str | None) -> tuple[int, int] | None:
    """Uid and gid of Docker's ``user[:group]``, None when only the image knows them."""
    uid, _, gid = (user or "0:0").partition(":")
    uid, gid = ("0" if value == "root" else value for value in (uid, gid or uid))
    return (int(uid), int(gid)) if uid.isdigit() and gid.isdigit() else None


def _bind(runner: RunnerBinary) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(runner.path.resolve()), "Target": RUNNER, "ReadOnly": True}


def _fill(client: DockerClient, image: str, mount: dict[str, Any], runner: RunnerBinary, labels: Labels) -> None:
    container = _create_helper(client, image, [mount], labels)
    try:
        if _hash_of(client, container, RUNNER) == runner.sha256:
            return
        _put(client, container, RUNNER_DIR, program("runner", runner.path))
        if _hash_of(client, container, RUNNER) != runner.sha256:
            raise LaunchError("the runner could not be brought into a volume of this Docker engine")
    finally:
        client.api.remove_container(container, force=True, v=True)


def _create_helper(client: DockerClient, image: str, mounts: list[dict[str, Any]], labels: Labels) -> str:
    """A container that is never started: only its mounts are of use."""
    host = client.api.create_host_config(network_mode="none")
    host["Mounts"] = mounts
    name = f"hermes-exec-helper-{secrets.token_hex(6)}"
    told = {RUNNER_LABEL: "", **to_strings(labels)}
    made = client.api.create_container(image, command=["true"], name=name, host_config=host, labels=told)
    return str(made["Id"])


def _hash_of(client: DockerClient, container: str, path: str) -> str | None:
    """SHA-256 of a file in a container, None when there is none."""
    from docker.errors import APIError

    try:
        chunks, _ = client.api.get_archive(container, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            member = archive.next()
            file = None if member is None or not member.isreg() else archive.extractfile(member)
            return None if file is None else hashlib.sha256(file.read()).hexdigest()
    except (APIError, tarfile.TarError):
        return None


def archive_of(entry: tarfile.TarInfo, content: bytes = b"") -> bytes:
    """An archive with one entry, as the engine takes it."""
    buffer = io.BytesIO()
    entry.size = len(content)
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def program(name: str, path: Path) -> bytes:
    """An archive with a program of this host."""
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755
    return archive_of(entry, path.read_bytes())


def _put(client: DockerClient, container: str, path: str, archive: bytes) -> None:
    if not client.api.put_archive(container, path, archive):
        raise LaunchError(f"Docker did not take the upload into {path}")
