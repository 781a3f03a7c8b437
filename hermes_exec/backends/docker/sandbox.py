"""One container: streams into it, its state as seen from outside, its end."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import OWN_EXIT_CODES, SandboxStatus
from hermes_exec.backends.docker.container import RUNNER
from hermes_exec.backends.docker.deadline import deadline
from hermes_exec.backends.docker.engine import DockerEngine, status_of
from hermes_exec.backends.docker.leftovers import remove
from hermes_exec.backends.docker.stream import DockerStream
from hermes_exec.backends.engine_errors import open_error
from hermes_exec.errors import BackendUnavailable, ExecError, PostMortem, Suspect

if TYPE_CHECKING:
    from docker import DockerClient

LOG_LINES = 40
EXIT_TIMEOUT_S = 10.0
"""Longest wait for the engine, for each container, when a program exits without closing its pool."""


class CreatedContainer(NamedTuple):
    """Facts of a container from its launch."""

    id: str
    name: str
    user: str | None
    workdir: str
    limits: Mapping[str, str]
    exclusive: bool
    base: str
    image_id: str


class DockerSandbox:
    """One container with a serving runner."""

    def __init__(self, engine: DockerEngine, container: CreatedContainer, stream: socket.socket | None = None) -> None:
        self._engine = engine
        self._container = container
        self.id = container.id
        self.user = container.user
        self.workdir = container.workdir
        self.limits = container.limits
        self.image_id = container.image_id
        self._stream = stream

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See `Sandbox.open`. The first stream may exist already; the daemon makes later ones."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            return FdStream(stream.detach())

        def work(client: DockerClient) -> DockerStream:
            command = [RUNNER, *argv, "--base", self._container.base]
            execution = client.api.exec_create(self.id, command, stdin=True, stdout=True, stderr=False)
            return DockerStream(_hijack(client.api.exec_start(execution["Id"], socket=True)))

        try:
            return await self._engine.make(work, DockerStream.close_now)
        except ExecError as error:
            raise await open_error(self, "container", error) from error

    async def status(self) -> SandboxStatus:
        """See `Sandbox.status`."""
        try:
            return await self._engine.call(self._status)
        except BackendUnavailable as error:
            return SandboxStatus("unknown", detail=str(error))
        except ExecError as error:
            if status_of(error) == 404:
                return SandboxStatus("dead", PostMortem("the container was removed", suspect="outside"))
            return SandboxStatus("unknown", detail=str(error))

    def _status(self, client: DockerClient) -> SandboxStatus:
        state: Mapping[str, Any] = client.api.inspect_container(self.id)["State"]
        status = str(state.get("Status"))
        if status in {"running", "created"}:
            return SandboxStatus("alive")
        if status not in {"exited", "dead", "removing"}:
            return SandboxStatus("unknown", detail=f"the container is {status}")
        return SandboxStatus("dead", self._post_mortem(client, state))

    def _post_mortem(self, client: DockerClient, state: Mapping[str, Any]) -> PostMortem:
        code, oom, failed = int(state.get("ExitCode", -1)), bool(state.get("OOMKilled")), state.get("Error")
        reason = f"the container ended with exit code {code}"
        if oom:
            reason += ", out of memory"
        if failed:
            reason += f": {failed}"
        return PostMortem(reason, code, oom, self._log_tail(client), self._suspect(code, oom, bool(failed)))

    def _suspect(self, code: int, oom: bool, failed: bool) -> Suspect:
        if failed:
            # Docker itself failed, for example when another program restarts the container.
            return "outside"
        if oom:
            return "tenant" if self._container.exclusive else "unknown"
        if code == 137:
            # PID 1 cannot be killed by SIGKILL from inside its own namespace.
            return "outside"
        if code in OWN_EXIT_CODES:
            return "unknown" if self._container.exclusive else "outside"
        return "tenant" if self._container.exclusive else "unknown"

    def _log_tail(self, client: DockerClient) -> str:
        from docker.errors import DockerException

        with contextlib.suppress(DockerException):
            return client.api.logs(self.id, tail=LOG_LINES).decode("utf-8", "replace")
        return ""

    def host_pid(self) -> int | None:
        """Return the main process of the container, as the engine's host numbers it; blocking."""
        state: Mapping[str, Any] = self._engine.call_now(lambda client: client.api.inspect_container(self.id)["State"])
        return int(state.get("Pid") or 0) or None

    def signal_now(self, number: int) -> None:
        """See `Signalable.signal_now`."""
        self._engine.call_now(lambda client: client.api.kill(self.id, signal=number))

    async def destroy(self) -> None:
        """Remove the container with its anonymous volumes. Does nothing if it is gone.

        A cancelled caller waits for it, but not past its deadline.
        """
        self._drop_stream()
        with anyio.CancelScope(shield=True, deadline=deadline()) as scope:
            await self._engine.call(self._remove)
        if scope.cancelled_caught:
            raise BackendUnavailable("the Docker daemon did not remove the container in time")

    def destroy_now(self, within_s: float = EXIT_TIMEOUT_S) -> None:
        """Destroy in this thread; errors are ignored."""
        self._drop_stream()
        with contextlib.suppress(ExecError):
            self._engine.call_now(self._remove, within_s)

    def _remove(self, client: DockerClient) -> None:
        remove(client, self.id, self._container.name)

    def _drop_stream(self) -> None:
        """Close a first stream that was never opened."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _hijack(connection: object) -> int:
    """Return a new descriptor of a hijacked connection, and close the SDK's objects."""
    raw, response = getattr(connection, "_sock", None), getattr(connection, "_response", None)
    try:
        # TLS and the SDK's ssh transport are not plain sockets: their bytes cannot be read from a descriptor.
        if not isinstance(raw, socket.socket) or isinstance(raw, ssl.SSLSocket):
            raise BackendUnavailable("the engine's connection is no plain socket: set base_url to a unix socket")
        return os.dup(raw.fileno())
    finally:
        for owner in (response, connection):
            if hasattr(owner, "close"):
                owner.close()
