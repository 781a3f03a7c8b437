"""How the runner gets into a container: bind mount where the engine has our files, upload, or a volume filled once."""

from __future__ import annotations

import hashlib
import io
import secrets
import tarfile
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

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

DeliveryMethod = Literal["bind", "upload", "volume"]
RUNNER_LABEL = "hermes-exec.runner"


class NotShared(Exception):
    """The engine does not see our runner at its path on this host: another delivery is needed."""


class Delivery:
    """Chooses the delivery once per engine, by trying: whether it shares this host's files is proven, never assumed.

    The first container is made as if it did. That is proven when its main process, known by its pid, connects to our
    socket in a mounted folder; without such a socket, when the runner in the container has our bytes.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._shared: dict[str, bool] = {}
        self._filled: set[str] = set()

    def method(self, runner: RunnerBinary) -> DeliveryMethod:
        """The delivery for a container: ``auto`` is ``bind`` until `refuted` or `prove` finds that it does not work."""
        if self._config.runner_delivery != "auto":
            return self._config.runner_delivery
        if self._shared.get(runner.sha256, True):
            return "bind"
        return "volume" if self._config.read_only else "upload"

    def _trying(self, method: DeliveryMethod, runner: RunnerBinary) -> bool:
        return (
            self._config.runner_delivery == "auto" and method == "bind" and not self._shared.get(runner.sha256, False)
        )

    def prove(
        self, client: DockerClient, container: str, method: DeliveryMethod, runner: RunnerBinary, *, called: bool
    ) -> None:
        """Check that a started container has our runner; `called` says that it has connected to us.

        Raises:
            NotShared: it has another runner, or none.
        """
        if not self._trying(method, runner):
            return
        with self._lock:
            if runner.sha256 not in self._shared:
                self._shared[runner.sha256] = called or _hash_of(client, container, RUNNER) == runner.sha256
            shared = self._shared[runner.sha256]
        if not shared:
            raise NotShared

    def refuted(
        self,
        client: DockerClient,
        container: str | None,
        error: APIError,
        method: DeliveryMethod,
        runner: RunnerBinary,
        dial_socket: DialSocket | None,
    ) -> bool:
        """Whether an engine's failure to make or start a container shows that it does not see our files."""
        if not self._trying(method, runner):
            return False
        if container is None:
            ours = (str(runner.path.resolve()), *((str(dial_socket.folder),) if dial_socket else ()))
            text = str(error.explanation)
            other = "source path does not exist" in text and any(path in text for path in ours)
        else:
            other = _hash_of(client, container, RUNNER) != runner.sha256
        if other:
            with self._lock:
                self._shared[runner.sha256] = False
        return other

    def mounts(
        self, client: DockerClient, method: DeliveryMethod, image: str, runner: RunnerBinary, labels: Labels
    ) -> list[dict[str, Any]]:
        """The mounts that bring the runner; fills the volume if that is the way. Helpers get ``labels``: should we be
        killed, they are reaped.
        """
        if method == "bind":
            return [_bind(runner)]
        if method == "upload":
            return []
        name = f"hermes-exec-runner-{runner.sha256}"
        mount = {"Type": "volume", "Source": name, "Target": RUNNER_DIR}
        with self._lock:
            if name not in self._filled:
                client.api.create_volume(name, labels={RUNNER_LABEL: runner.sha256})
                _fill(client, image, mount, runner, labels)
                self._filled.add(name)
        return [{**mount, "ReadOnly": True}]

    def prepare(self, client: DockerClient, container: str, method: DeliveryMethod, runner: RunnerBinary) -> None:
        """What has to be uploaded into the created container before it starts."""
        if method == "upload":
            _put(client, container, "/", _archive([_directory(RUNNER_DIR[1:]), _program(RUNNER[1:], runner)]))
        owner = _numeric(self._config.user)
        if owner != (0, 0):
            # A new volume belongs to root: the runner of another user gets a directory of its own in it.
            entry = _directory(BASE_DIR.removeprefix(f"{STATE_DIR}/"))
            if owner is None:
                entry.mode = 0o1777
            else:
                entry.uid, entry.gid = owner
                entry.mode = 0o711
            _put(client, container, STATE_DIR, _archive([entry]))


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
        _put(client, container, RUNNER_DIR, _archive([_program("runner", runner)]))
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


def _directory(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry


class _Program(tarfile.TarInfo):
    content: bytes


def _program(name: str, runner: RunnerBinary) -> _Program:
    entry = _Program(name)
    entry.content = runner.path.read_bytes()
    entry.size, entry.mode = len(entry.content), 0o755
    return entry


def _archive(entries: Iterable[tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(entry.content) if isinstance(entry, _Program) else None)
    return buffer.getvalue()


def _put(client: DockerClient, container: str, path: str, archive: bytes) -> None:
    if not client.api.put_archive(container, path, archive):
        raise LaunchError(f"Docker did not take the upload into {path}")
