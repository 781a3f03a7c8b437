"""Containers of Docker that stand for sandboxes: started, entered, ended, and what they leave removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import docker
from docker.errors import APIError, NotFound

from hermes_exec.backends.docker.container import SECCOMP_PROFILE
from hermes_exec.backends.modal.sandbox import STATE_DIR

T = TypeVar("T")
LABEL = "io.hermes-exec.test.modal-server"
AHEAD_BYTES = 16 << 20
"""Of what a process writes, so much is taken before somebody reads it."""
KEPT_BYTES = 96 << 20
"""Of what was read, so much is kept for a client that resumes at an earlier offset."""
HEADER = struct.Struct(">BxxxI")


class Wanted(NamedTuple):
    """What a sandbox is to be."""

    image: str
    command: list[str]
    env: dict[str, str]
    workdir: str | None
    network: bool
    cpus: float
    memory_mb: int
    binds: list[str]
    nested: bool
    """Whether its tenants are in user namespaces."""


class Output:
    """What one stream of a process has written, readable from any offset that is still kept."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._read = 0
        self._changed = asyncio.Event()
        self.ended = False

    async def put(self, data: bytes) -> None:
        """Add data, when readers are not too far behind."""
        while self._start + len(self._data) - self._read > AHEAD_BYTES:
            await self._next()
        self._data += data
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self.ended = True
        self._wake()

    async def read(self, offset: int) -> bytes:
        """What there is from an offset on, when there is something; empty at the end."""
        while True:
            self._read = max(self._read, offset)
            self._wake()
            drop = self._read - KEPT_BYTES - self._start
            if drop > 0:
                del self._data[:drop]
                self._start += drop
            if found := bytes(self._data[offset - self._start : offset - self._start + (1 << 20)]):
                return found
            if self.ended:
                return b""
            await self._next()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _next(self) -> None:
        await self._changed.wait()


class Process:
    """A process in a container, whose streams are read and written by offset."""

    def __init__(self, engine: Containers, exec_id: str, raw: socket.socket, *, keep: tuple[bool, bool]) -> None:
        self.stdout, self.stderr = Output(), Output()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._id = exec_id
        self._raw = raw
        self._keep = keep
        self._written = 0
        self._closed = False
        self._writing = asyncio.Lock()
        self._opened: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._raw, limit=1 << 20)
        self._opened.set_result(writer)
        outputs = {1: self.stdout if self._keep[0] else None, 2: self.stderr if self._keep[1] else None}
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, size = HEADER.unpack(await reader.readexactly(HEADER.size))
                while size:
                    data = await reader.read(min(size, 1 << 18))
                    if not data:
                        raise asyncio.IncompleteReadError(b"", size)
                    size -= len(data)
                    if (output := outputs.get(kind)) is not None:
                        await output.put(data)
        code = -1
        with contextlib.suppress(APIError, OSError):
            code = int((await self._engine.call(lambda c: c.api.exec_inspect(self._id)))["ExitCode"] or 0)
        writer.close()
        self.code.set_result(code)
        self.stdout.end()
        self.stderr.end()

    async def write(self, offset: int, data: bytes, *, eof: bool) -> bool:
        """Write what was not written before; False when there is a gap, or nobody reads any more."""
        writer = await asyncio.shield(self._opened)
        async with self._writing:
            if self._closed or self.code.done() or offset > self._written:
                return self._closed or self.code.done()
            fresh = data[self._written - offset :]
            self._written += len(fresh)
            with contextlib.suppress(OSError):
                writer.write(fresh)
                await writer.drain()
                if eof and not self._closed:
                    self._closed = True
                    writer.write_eof()
            return True


class Containers:
    """Those of one server; all of them go with it."""

    def __init__(self) -> None:
        self._client = docker.from_env(timeout=120, max_pool_size=256)
        self._threads = ThreadPoolExecutor(256)
        self._label = {LABEL: str(os.getpid())}

    async def call(self, work: Callable[[docker.DockerClient], T]) -> T:
        """Blocking work with the client, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, self._client))

    async def start(self, wanted: Wanted) -> str:
        """Start a container; its id. As on Modal, process 1 is an init and the command its child."""

        def work(client: docker.DockerClient) -> str:
            api = client.api
            host = api.create_host_config(
                init=True,
                binds=wanted.binds,
                network_mode="default" if wanted.network else "none",
                nano_cpus=round(wanted.cpus * 1e9) or None,
                mem_limit=wanted.memory_mb << 20 or None,
                memswap_limit=wanted.memory_mb << 20 or None,
                security_opt=[f"seccomp={SECCOMP_PROFILE.read_text('utf-8')}"] if wanted.nested else None,
            )
            if wanted.nested:
                # Root of a sandbox on Modal may make user namespaces and mount in them, in a kernel of its own. Here
                # the kernel is the host's: a tenant who is root of the container itself gets Docker's own profile.
                host |= {"MaskedPaths": [], "ReadonlyPaths": []}
            # The root of a sandbox is no overlay; over one of Docker's no second one can be laid.
            host["Mounts"] = [{"Type": "volume", "Target": STATE_DIR, "VolumeOptions": {"Labels": self._label}}]
            made: Mapping[str, Any] = api.create_container(
                wanted.image,
                wanted.command,
                environment=wanted.env,
                working_dir=wanted.workdir,
                user="0:0",
                labels=self._label,
                host_config=host,
            )
            try:
                api.start(made["Id"])
            except BaseException:
                self._remove(client, made["Id"])
                raise
            return str(made["Id"])

        return await self.call(work)

    async def wait(self, container: str) -> int:
        """Its exit code, when it has ended."""
        with contextlib.suppress(NotFound):
            answer = await self.call(lambda client: client.api.wait(container, timeout=86_400))
            return int(answer["StatusCode"])
        return 137

    async def log(self, container: str) -> bytes:
        """What its main process wrote to stderr."""
        return bytes(await self.call(lambda client: client.api.logs(container, stdout=False, stderr=True, tail=500)))

    async def enter(
        self, container: str, argv: list[str], env: dict[str, str], workdir: str | None, *, keep: tuple[bool, bool]
    ) -> Process:
        """Start a process in it."""

        def work(client: docker.DockerClient) -> tuple[str, socket.socket]:
            made = client.api.exec_create(container, argv, stdin=True, environment=env, workdir=workdir)
            hijacked: Any = client.api.exec_start(made["Id"], socket=True)
            raw = socket.socket(fileno=os.dup(hijacked._sock.fileno()))
            for owner in (getattr(hijacked, "_response", None), hijacked):
                if owner is not None:
                    owner.close()
            raw.setblocking(False)
            return made["Id"], raw

        exec_id, raw = await self.call(work)
        return Process(self, exec_id, raw, keep=keep)

    async def kill(self, container: str) -> None:
        """End it by force."""
        with contextlib.suppress(APIError):
            await self.call(lambda client: client.api.kill(container))

    async def remove(self, container: str) -> None:
        """Remove it."""
        await self.call(lambda client: self._remove(client, container))

    @staticmethod
    def _remove(client: docker.DockerClient, container: str) -> None:
        with contextlib.suppress(APIError):
            client.api.remove_container(container, force=True, v=True)

    def sweep(self) -> None:
        """Remove what this server, or one that was killed, has made; blocking."""
        filters = {"label": LABEL}
        for container in self._client.api.containers(all=True, filters=filters):
            if self._of_the_dead(container["Labels"]):
                self._remove(self._client, container["Id"])
        for image in self._client.api.images(filters=filters):
            if self._of_the_dead(image["Labels"] or {}):
                with contextlib.suppress(APIError):
                    self._client.api.remove_image(image["Id"], force=True)
        for volume in self._client.api.volumes(filters=filters)["Volumes"] or ():
            if self._of_the_dead(volume["Labels"] or {}):
                with contextlib.suppress(APIError):
                    self._client.api.remove_volume(volume["Name"], force=True)

    @property
    def label(self) -> dict[str, str]:
        """What marks all that is this server's."""
        return self._label

    def _of_the_dead(self, labels: Mapping[str, str]) -> bool:
        pid = labels.get(LABEL, "")
        return pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")

    def close(self) -> None:
        """Remove everything and close the client; blocking."""
        self.sweep()
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
