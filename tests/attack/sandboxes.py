"""A hostile sandbox against its driver: what it does, what the caller is told, what becomes of the pool and another
sandbox.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_exec import Died, ExecError, PoolEvent, SandboxPool, Slot
from hermes_exec.aio.streams import FdStream
from hermes_exec.channel.frames import HEADER, MORE, Frame, FrameType, encode, encode_position, encode_positioned
from tests.attack.areas.storms import lower_peak, memory_mib
from tests.fuzz.runner import BROKEN, HostileRunner
from tests.fuzz.seeds import EXIT, as_json
from tests.support.hostile import Backend, registered

BEGIN = "<!-- sandboxes: begin (python -m tests.attack.sandboxes --write) -->"
END = "<!-- sandboxes: end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "hostile-sandboxes.md"
TIMEOUT_S = 1.0
HANG_S = 60.0
MOST_MIB = 64.0
"""What the driver may take more for any of this."""
REPLACED, KEPT = "replaces the sandbox", "keeps the sandbox"
Call = Callable[[Slot], Awaitable[str]]
Says = Callable[[int], AsyncIterator[bytes]]


async def run(slot: Slot, timeout_s: float = TIMEOUT_S) -> str:
    """A command with a time limit."""
    result = await slot.run("true", timeout_s=timeout_s)
    return f"a result with {len(result.stdout_bytes):,} bytes of output"


async def run_long(slot: Slot) -> str:
    """The same with one that is not to be reached."""
    return await run(slot, HANG_S)


async def download(slot: Slot) -> str:
    """A directory, to a place beside which nothing may appear."""
    with tempfile.TemporaryDirectory() as around:
        target = Path(around, "a", "b")
        copied = await slot.files.download(".", str(target))
        return f"{', '.join(_below(Path(around), target))}; {len(copied.refused)} refused"


def _below(around: Path, target: Path) -> list[str]:
    """What lies in a directory, and that nothing lies beside it."""
    outside = [name for name in (*os.listdir(around), *os.listdir(target.parent)) if name not in ("a", "b")]
    assert not outside, outside
    assert not Path(ABSOLUTE).exists()
    return sorted(str(path.relative_to(target)) for path in target.rglob("*"))


@dataclass(frozen=True)
class Assault:
    """One row."""

    name: str
    does: str
    says: Says
    """What it sends for the call with this number, in pieces."""
    method: str = "exec.run"
    """When: at this request, or at the handshake (`hello`)."""
    call: Call = run
    lease_s: float = 3.0
    """A slow machine may take longer than this to have read what is too much."""


@dataclass(frozen=True)
class Outcome:
    """What was seen."""

    call: str
    pool: str
    more_mib: float
    """What the driver had resident at most, over what it had before."""
    seconds: float


def at_once(make: Callable[[int], bytes]) -> Says:
    """All in one piece."""

    async def says(number: int) -> AsyncIterator[bytes]:
        yield make(number)

    return says


def without_end(make: Callable[[int, int], bytes], pause_s: float = 0.0) -> Says:
    """One piece after the other; `make` is given their numbers too."""

    async def says(number: int) -> AsyncIterator[bytes]:
        for at in count():
            yield make(number, at)
            await anyio.sleep(pause_s)

    return says


def slowly(make: Callable[[int], bytes]) -> Says:
    """A byte at a time."""

    async def says(number: int) -> AsyncIterator[bytes]:
        for byte in make(number):
            yield bytes([byte])
            await anyio.sleep(0.002)

    return says


def _response(number: int, text: bytes) -> bytes:
    return encode(FrameType.RESPONSE, number, text)


def _tree(members: Iterable[tuple[str, bytes, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return out.getvalue()


ABSOLUTE = "/tmp/hermes-exec-absolute"
LEADING_OUT = (
    ("../up", tarfile.REGTYPE, ""),
    (ABSOLUTE, tarfile.REGTYPE, ""),
    ("way", tarfile.SYMTYPE, "../.."),
    ("way/through", tarfile.REGTYPE, ""),
    ("hard", tarfile.LNKTYPE, "/etc/passwd"),
    ("device", tarfile.CHRTYPE, ""),
    ("kept", tarfile.REGTYPE, ""),
)


def _archive(number: int, data: bytes, result: bytes) -> bytes:
    pieces = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    frames = [encode_positioned(FrameType.DATA, number, 1, at * 60_000, piece) for at, piece in enumerate(pieces)]
    return b"".join((*frames, encode_positioned(FrameType.END, number, 1, len(data)), _response(number, result)))


def _long_header(number: int, at: int) -> bytes:
    """A GNU long name of a gigabyte, and then its bytes."""
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    data = head.tobuf(tarfile.GNU_FORMAT) if at == 0 else b"x" * 50_000
    position = 0 if at == 0 else tarfile.BLOCKSIZE + (at - 1) * 50_000
    return encode_positioned(FrameType.DATA, number, 1, position, data)


STARTED = b'{"event":"started","pid":5}'
ASSAULTS = (
    Assault("garbage", "sends bytes that are not frames", at_once(lambda _: os.urandom(100_000) + b"\xff" * 32)),
    Assault("a frame of 2 GiB", "announces a frame of that size", at_once(lambda n: HEADER.pack(1 << 31, 4, 0, 0, n))),
    Assault(
        "output without credit",
        "sends output without end and ignores flow control",
        without_end(lambda n, at: encode_positioned(FrameType.DATA, n, 1, at * 50_000, bytes(50_000))),
    ),
    Assault(
        "events without credit",
        "sends start events without end",
        without_end(lambda n, at: encode_positioned(FrameType.EVENT, n, 0, at * len(STARTED), STARTED)),
    ),
    Assault(
        "an answer without end",
        "sends parts of a result, each marked as not the last",
        without_end(lambda n, _: encode(FrameType.RESPONSE, n, bytes(65_000), flags=MORE)),
        lease_s=30.0,
    ),
    Assault(
        "an answer of 60,000 levels",
        "sends JSON with that many nested arrays",
        at_once(lambda n: _response(n, b'{"result":' + b"[" * 60_000)),
    ),
    Assault(
        "numbers of 4,000 digits",
        "reports such a number as the exit code",
        at_once(lambda n: _response(n, b'{"result": {"exit_code": ' + b"9" * 4000 + b"}}")),
    ),
    Assault(
        "a wrong result type",
        "answers with the result type of another method",
        at_once(lambda n: _response(n, b'{"result": {"entries": []}}')),
    ),
    Assault(
        "an unknown request",
        "answers a request that was never sent",
        at_once(lambda n: _response(n + 1, b'{"result": {}}')),
    ),
    Assault(
        "a replay",
        "sends the same output twice",
        at_once(lambda n: encode_positioned(FrameType.DATA, n, 1, 0, b"x") * 2),
    ),
    Assault(
        "false credit",
        "acknowledges bytes that were never sent",
        at_once(lambda n: encode_position(FrameType.CREDIT, n, 1 << 40)),
    ),
    Assault(
        "a request of its own",
        "asks the driver to run something",
        at_once(lambda n: encode(FrameType.REQUEST, n, b'{"method": "exec.run"}')),
    ),
    Assault("silence", "keeps the stream alive and never answers", at_once(lambda _: b"")),
    Assault(
        "a byte at a time",
        "answers with a few hundred bytes per second",
        slowly(
            lambda n: b"".join(
                (
                    encode_positioned(FrameType.DATA, n, 1, 0, b"abc"),
                    encode_positioned(FrameType.DATA, n, 2, 3, b"xyz"),
                    _response(n, as_json({"result": EXIT})),
                )
            )
        ),
        call=run_long,
    ),
    Assault("a hang-up", "closes the stream and accepts no new one", at_once(lambda _: b"")),
    Assault("a broken handshake", "sends garbage during the handshake", at_once(lambda _: os.urandom(5000)), "hello"),
    Assault(
        "a handshake without end",
        "sends keepalives and nothing else during the handshake",
        at_once(lambda _: b""),
        "hello",
    ),
    Assault(
        "names that lead outside",
        "puts `..`, absolute names, links and devices into a downloaded directory",
        at_once(lambda n: _archive(n, _tree(LEADING_OUT), b'{"result": {"files": 7, "bytes": 0, "skipped": []}}')),
        "file.get_tree",
        download,
    ),
    Assault(
        "a name of a gigabyte",
        "puts a file name of that size into a downloaded directory",
        without_end(_long_header),
        "file.get_tree",
        download,
    ),
)
BY_NAME = {assault.name: assault for assault in ASSAULTS}


class _Attacker(HostileRunner):
    """Does as it should until the moment comes."""

    def __init__(self, assault: Assault, tasks: TaskGroup) -> None:
        super().__init__(Random(0), 0.0, tasks)
        self.assault = assault
        self.busy = False
        self.later: list[Frame] = []

    def _welcome(self, hello: dict[str, Any]) -> list[bytes]:
        if self.assault.method == "hello":
            self._begin(0)
            return []
        return super()._welcome(hello)

    def _carry_out(self, number: int, request: dict[str, Any]) -> list[bytes]:
        if request["method"] == "file.stat" and self.assault.call is download:
            return [_response(number, b'{"result": {"type": "dir", "mode": 493}}')]
        if request["method"] != self.assault.method:
            return super()._carry_out(number, request)
        self._begin(number)
        return []

    def _answer(self, frame: Frame) -> list[bytes]:
        """What else there is to say would come between the pieces of an attack, and waits for its end."""
        if not self.busy:
            return super()._answer(frame)
        self.later.append(frame)
        return []

    def _begin(self, number: int) -> None:
        assert self.stream is not None
        if self.assault.name == "a hang-up":
            self.stop()
        else:
            self.busy = True
            self.tasks.start_soon(self._attack, self.stream, number)

    async def _attack(self, stream: FdStream, number: int) -> None:
        try:
            async for piece in self.assault.says(number):
                await stream.send(piece)
            self.busy = False
            for frame in self.later:
                if answer := self._answer(frame):
                    await self._say(stream, answer)
        except BROKEN:
            return


async def assaulted(assault: Assault) -> Outcome:
    """Do it to a pool that has another sandbox at work."""
    events: list[PoolEvent] = []
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:

            def make(number: int) -> HostileRunner:
                return _Attacker(assault, tasks) if number == 1 else HostileRunner(Random(number), 0.0, tasks)

            options: dict[str, Any] = {
                "slots_per_sandbox": 1,
                "max_sandboxes": 2,
                "lease_s": assault.lease_s,
                "launch_timeout_s": 20.0,
            }
            with registered(Backend(make)):
                async with SandboxPool("hostile", on_event=events.append, **options) as pool, pool.slot() as other:
                    outcome = await _watched(pool, other, assault, events)
            tasks.cancel_scope.cancel()
    return outcome


async def _watched(pool: SandboxPool, other: Slot, assault: Assault, events: list[PoolEvent]) -> Outcome:
    calls = 0

    async def work() -> None:
        nonlocal calls
        while True:
            assert (await other.run("true", timeout_s=30)).stdout == "abc"
            calls += 1

    assert lower_peak()
    before, began = memory_mib(os.getpid(), "VmRSS"), anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        told = await _told(pool, assault)
        took, done = anyio.current_time() - began, calls
        while calls < done + 10:  # noqa: ASYNC110 - the other sandbox counts
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    died = any(isinstance(event, Died) and event.sandbox == "sandbox-1" for event in events)
    async with pool.slot() as slot:
        replaced = slot.sandbox != "sandbox-1"
        if replaced:
            assert (await slot.run("true", timeout_s=30)).stdout == "abc"
    return Outcome(told, REPLACED if died or replaced else KEPT, memory_mib(os.getpid(), "VmHWM") - before, took)


async def _told(pool: SandboxPool, assault: Assault) -> str:
    try:
        async with pool.slot() as slot:
            return await assault.call(slot) if slot.sandbox == "sandbox-1" else "a slot in another sandbox"
    except ExecError as error:
        return f"`{type(error).__name__}`, {error.cause.value}"


def line(assault: Assault, outcome: Outcome) -> str:
    """A row of the page."""
    return f"| **{assault.name}**: {assault.does} | {outcome.call} | {outcome.pool} |"


def written() -> list[str]:
    """The rows of the page."""
    part = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return [row for row in part.splitlines() if row.startswith("| **")]


def main() -> int:
    """Fire all of them, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = ["| what the sandbox does | the call | the pool |", "|---|---|---|"]
    for assault in ASSAULTS:
        outcome = anyio.run(assaulted, assault)
        rows.append(line(assault, outcome))
        print(f"{rows[-1]} {outcome.seconds:.1f} s, {outcome.more_mib:.1f} MiB", flush=True)
    if options.write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        table = "\n".join(rows)
        PAGE.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
