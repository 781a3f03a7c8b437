"""One large file up and down, compared with the engine's own ways: the raw stream of an exec, and archives."""

from __future__ import annotations

import os
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import IO

from anyio import to_thread

from benchmarks import hermes
from benchmarks.calls import DOCKER, LOCAL
from benchmarks.container import Container, run_container
from benchmarks.contender import ContenderMissing
from benchmarks.measurements import Discipline, Measurements, Sample, progress
from benchmarks.naive_client import HEADER, make_exec_socket
from benchmarks.options import Options

STREAM, ARCHIVE = "docker exec cat, raw stream", "docker SDK, archive"
PIECE = 1 << 20
ROUNDS = 4


class RawStream:
    """`cat` behind an exec of the SDK, with raw bytes."""

    tar = False

    def __init__(self, container: Container) -> None:
        self._container = container
        self._start = make_exec_socket(container.client.api, str(container.container.id))

    async def up(self, local: Path) -> None:
        """Send the file and its end, and wait for the end of `cat`."""

        def send() -> None:
            with self._start(["sh", "-c", "cat > /tmp/f"]) as connection, local.open("rb") as file:
                connection.sendfile(file)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(PIECE):
                    pass

        await self._container.call(send)

    async def down(self, local: Path) -> None:
        """Parse the engine's frames, and write their content."""

        def receive() -> None:
            with (
                self._start(["cat", "/tmp/f"]) as connection,
                local.open("wb") as file,
                connection.makefile("rb", buffering=PIECE) as frames,
            ):
                while head := frames.read(HEADER.size):
                    file.write(frames.read(HEADER.unpack(head)[1]))

        await self._container.call(receive)


class Archive:
    """`put_archive` and `get_archive`. The download stays a tar archive."""

    tar = True

    def __init__(self, container: Container) -> None:
        self._container = container

    async def up(self, local: Path) -> None:
        """Send a tar archive that is created during the transfer."""
        put: Callable[..., bool] = self._container.container.put_archive
        assert await self._container.call(put, "/tmp", make_tar_pieces(local))

    async def down(self, local: Path) -> None:
        """Receive a tar."""

        def receive() -> None:
            pieces, _ = self._container.container.get_archive("/tmp/f")
            with local.open("wb") as file:
                file.writelines(pieces)

        await self._container.call(receive)


class Slot:
    """`upload` and `download`."""

    tar = False

    def __init__(self, contender: hermes.Hermes) -> None:
        self._files = contender.slot.files

    async def up(self, local: Path) -> None:
        """Upload."""
        await self._files.upload(str(local), "f")

    async def down(self, local: Path) -> None:
        """Download."""
        await self._files.download("f", str(local))


Carrier = RawStream | Archive | Slot


def make_tar_pieces(local: Path) -> Iterator[bytes]:
    """Yield a tar archive of one file, in pieces."""
    entry = tarfile.TarInfo("f")
    entry.size = local.stat().st_size
    yield entry.tobuf()
    with local.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
    yield bytes(-entry.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)


async def open_carriers(stack: AsyncExitStack, measurements: Measurements) -> dict[str, Carrier]:
    """Open the carriers that can take part here."""
    carriers: dict[str, Carrier] = {LOCAL: Slot(await stack.enter_async_context(hermes.open_local()))}
    try:
        container = await stack.enter_async_context(run_container())
        carriers |= {STREAM: RawStream(container), ARCHIVE: Archive(container)}
        carriers[DOCKER] = Slot(await stack.enter_async_context(hermes.open_docker()))
    except ContenderMissing as error:
        measurements.leave_out("large files on Docker", error)
    return carriers


def is_same_file(local: Path, path: Path, tar: bool) -> bool:
    """Return whether the file is the same, byte for byte."""
    with ExitStack() as stack:
        sent: IO[bytes] = stack.enter_context(local.open("rb"))
        received: IO[bytes] | None = stack.enter_context(path.open("rb"))
        if tar:
            received = stack.enter_context(tarfile.open(fileobj=received)).extractfile("f")
        assert received is not None
        return all(sent.read(PIECE) == received.read(PIECE) for _ in range(local.stat().st_size // PIECE + 1))


async def measure(options: Options) -> Measurements:
    """Transfer the file up and down in rounds. In each round, all carriers run one after the other."""
    measurements = Measurements()
    size = options.megabytes << 20
    names = [f"{options.megabytes} MiB {way}" for way in ("up", "down")]
    bases = {DOCKER: STREAM, STREAM: STREAM, ARCHIVE: STREAM}
    up, down = (Discipline(name, "bytes", bases, size) for name in names)
    measurements.disciplines += [up, down]
    with tempfile.TemporaryDirectory() as directory:
        local, back = Path(directory) / "f", Path(directory) / "back"
        await to_thread.run_sync(local.write_bytes, os.urandom(PIECE) * options.megabytes)
        async with AsyncExitStack() as stack:
            carriers = await open_carriers(stack, measurements)
            for number in range(min(ROUNDS, options.rounds) + 1):
                for name, carrier in carriers.items():
                    progress(f"{options.megabytes} MiB up and down: round {number}, {name}")
                    times = []
                    for move, path in ((carrier.up, local), (carrier.down, back)):
                        begin = time.perf_counter()
                        await move(path)
                        times.append(time.perf_counter() - begin)
                    assert await to_thread.run_sync(is_same_file, local, back, carrier.tar), name
                    back.unlink()
                    for discipline, duration_s in zip((up, down), times, strict=True):
                        # The first round warms up and is not counted.
                        (discipline.sample(name) if number else Sample()).add_one(duration_s)
    return measurements
