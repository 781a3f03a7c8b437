"""The client of a naive worker behind one stream, on the host and in a container."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.container import Container, run_container
from benchmarks.contender import NOOP, OUTPUT_BYTES, OUTPUT_SCRIPT

WORKER = Path(__file__).resolve().parent / "naive_worker.py"
LINE_BYTES = 64 << 20
TIME_LIMIT_S = 60.0
HEADER = struct.Struct(">BxxxI")


class Writer(Protocol):
    """The stream for requests."""

    def write(self, data: bytes) -> None:
        """Write bytes."""

    async def drain(self) -> None:
        """Wait until more may be written."""


class NaiveClient:
    """A client that sends numbered requests, each as a line of JSON."""

    def __init__(self, writer: Writer, lines: AsyncIterator[bytes], file: str) -> None:
        self._writer = writer
        self._lines = lines
        self._file = file
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0

    async def noop(self) -> None:
        """Run the empty command."""
        assert (await self._ask(run=NOOP))["exit_code"] == 0

    async def write(self, data: bytes) -> None:
        """Write a file, as base64."""
        await self._ask(write=self._file, data=base64.b64encode(data).decode())

    async def read(self, data: bytes) -> None:
        """Read a file, as base64."""
        assert base64.b64decode((await self._ask(read=self._file))["data"]) == data

    async def output(self) -> None:
        """Read a large output, as base64."""
        answer = await self._ask(run=["bash", "-c", OUTPUT_SCRIPT])
        assert len(base64.b64decode(answer["data"])) == OUTPUT_BYTES

    async def serve(self) -> None:
        """Pass answers to their waiting requests until the stream ends."""
        async for line in self._lines:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for future in self._waiting.values():
            future.set_exception(ConnectionError("the naive worker has ended"))

    async def _ask(self, **request: Any) -> dict[str, Any]:
        self._next += 1
        future = self._waiting[self._next] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": self._next, **request}).encode() + b"\n")
        await self._writer.drain()
        answer: dict[str, Any] = await future
        return answer


async def read_pipe_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line of a pipe."""
    while line := await reader.readline():
        yield line


async def read_exec_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line on stdout of a Docker exec, from the engine's frames."""
    parts: list[bytes] = []
    with suppress(asyncio.IncompleteReadError):
        while True:
            stream, size = HEADER.unpack(await reader.readexactly(HEADER.size))
            data = await reader.readexactly(size)
            if stream != 1:
                continue
            *whole, rest = data.split(b"\n")
            for line in whole:
                yield b"".join([*parts, line])
                parts.clear()
            if rest:
                parts.append(rest)


@asynccontextmanager
async def open_local() -> AsyncIterator[NaiveClient]:
    """Yield a worker that is a child of this process."""
    with tempfile.TemporaryDirectory() as directory:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=LINE_BYTES
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with _serve_client(process.stdin, read_pipe_lines(process.stdout), f"{directory}/f") as worker:
                yield worker
        finally:
            process.stdin.close()
            await process.wait()


@asynccontextmanager
async def open_docker() -> AsyncIterator[NaiveClient]:
    """Yield a worker in a container, behind one exec of the SDK.

    Raises:
        ContenderMissing: If Docker is not available.
    """
    async with run_container() as container:
        await container.put("/", WORKER.name, WORKER.read_bytes())
        connection = await open_exec_socket(container, ["python3", f"/{WORKER.name}"])
        reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_BYTES)
        try:
            async with _serve_client(writer, read_exec_lines(reader), "/tmp/f") as worker:
                yield worker
        finally:
            writer.close()


async def open_exec_socket(container: Container, command: list[str]) -> socket.socket:
    """Return the hijacked connection of a new exec."""
    api = container.client.api
    return await container.call(make_exec_socket(api, str(container.container.id)), command)


def make_exec_socket(api: Any, container: str) -> Callable[[list[str]], socket.socket]:  # noqa: ANN401 - types-docker has no exec sockets
    """Return a function that starts a command in a container and returns the connection to it."""

    def make(command: list[str]) -> socket.socket:
        created = api.exec_create(container, command, stdin=True, stdout=True, stderr=True)
        hijacked = api.exec_start(created["Id"], socket=True)
        try:
            connection = socket.socket(fileno=os.dup(hijacked.fileno()))
        finally:
            hijacked.close()
        connection.settimeout(TIME_LIMIT_S)
        return connection

    return make


@asynccontextmanager
async def _serve_client(writer: Writer, lines: AsyncIterator[bytes], file: str) -> AsyncIterator[NaiveClient]:
    worker = NaiveClient(writer, lines, file)
    task = asyncio.create_task(worker.serve())
    try:
        yield worker
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
