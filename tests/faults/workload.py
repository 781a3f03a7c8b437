"""Sixteen workers that do at random what a rollout does, and check each answer; what they saw is judged afterwards."""

from __future__ import annotations

import errno
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from hermes_exec import (
    AcquireTimeout,
    ChannelLost,
    CheckpointLost,
    LaunchError,
    OutcomeUnknown,
    SandboxDied,
    SandboxPool,
    Slot,
    SlotClosed,
)
from tests.faults.checkpoints import find_left_layers, use_checkpoint

WORKERS = 16
ROUNDS = 3
PATIENCE_S = 60.0
"""Time limit of a command that is not meant to reach it."""
PAST_S = 30.0
"""How far a call may go past its time limit on a busy machine; one that the limit does not end would go on for ever."""
BROKEN = (SandboxDied, OutcomeUnknown, ChannelLost, SlotClosed, CheckpointLost)
"""What a call may raise when something broke."""


@dataclass
class Told:
    """What the product said of one command: it has a result, it did not run, or nobody knows."""

    name: str
    result: bool = False
    not_run: bool = False
    seconds: float = 0.0
    error: str = ""


@dataclass
class Record:
    """Everything that one run of the workload saw."""

    told: list[Told] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    full: int = 0


def nap(seed: int, number: int) -> str:
    """How long a worker's sleeping commands sleep: seconds that nobody else uses."""
    return f"3{seed:06}.{number:03}"


class Worker:
    """One of the workers."""

    def __init__(
        self, pool: SandboxPool, record: Record, evidence: Callable[[str], str], number: int, seed: int
    ) -> None:
        self.pool, self.record, self.evidence, self.number = pool, record, evidence, number
        self.random = random.Random(f"{seed}/worker/{number}")
        self.count = 0
        self.tag = f"w{seed}x{number}"
        self.nap = nap(seed, number)

    async def work(self, directory: Path) -> None:
        """Acquire slots and use them."""
        for _ in range(ROUNDS):
            try:
                async with self.pool.slot(timeout_s=120) as slot:
                    await self._clean(slot)
                    for _ in range(self.random.randint(1, 4)):
                        await self.random.choice(self._acts())(slot, directory)
            except BROKEN:
                continue
            except (AcquireTimeout, LaunchError):
                self.record.refused += 1
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self.record.full += 1

    def _acts(self) -> list[Callable[[Slot, Path], Awaitable[None]]]:
        return [
            self.output,
            self.output,
            self.streamed,
            self.input,
            self.process,
            self.session,
            self.files,
            self.trees,
            self.cancelled,
            self.late,
            self.reset,
            self.checkpoint,
            self.checkpoint,
        ]

    def note(self, what: str) -> None:
        """Record what is wrong."""
        self.record.wrong.append(f"worker {self.number}: {what}")

    async def _clean(self, slot: Slot) -> None:
        if left := await slot.files.list("."):
            self.note(f"an acquired slot had {[entry.name for entry in left]}")
        if living := await slot.processes():
            self.note(f"an acquired slot had {living}")

    async def _told(self, limit_s: float, call: Callable[[str], Awaitable[None]]) -> None:
        """Make a call with a trace of its own; afterwards it must have run once, or have raised."""
        told = await self._watched("", limit_s, call)
        told.result = True

    async def _watched(self, how: str, limit_s: float, call: Callable[[str], Awaitable[None]]) -> Told:
        """Make a call with a trace of its own, which may have run or not, and keep what was said of it."""
        self.count += 1
        told = Told(f"{self.tag}n{self.count}", error=how)
        self.record.told.append(told)
        began = time.monotonic()
        try:
            await call(told.name)
        except BROKEN as error:
            told.not_run = isinstance(error, ChannelLost)
            told.error = repr(error)
            raise
        finally:
            told.seconds = time.monotonic() - began
            if told.seconds > limit_s + PAST_S:
                self.note(f"{told.name} took {told.seconds:.1f} s with a limit of {limit_s:g} s: {told.error}")
        return told

    async def output(self, slot: Slot, _: Path) -> None:
        """A command with output and an exit code."""
        size, code = self.random.choice((0, 10, 5_000, 300_000)), self.random.randint(0, 3)

        async def call(name: str) -> None:
            text = f"{self.evidence(name)}; head -c {size} /dev/zero | tr '\\0' x; echo {name}; exit {code}"
            result = await slot.run(text, timeout_s=PATIENCE_S)
            if (result.stdout, result.exit_code) != ("x" * size + name + "\n", code):
                self.note(f"{name}: {len(result.stdout)} bytes, not {size} and {code}: {result!r:.2000}")

        await self._told(PATIENCE_S, call)

    async def streamed(self, slot: Slot, _: Path) -> None:
        """Output that is seen as it comes."""
        lines = self.random.choice((10, 2_000, 20_000))
        got: list[bytes] = []

        async def call(name: str) -> None:
            result = await slot.run(
                f"{self.evidence(name)}; seq {lines}",
                timeout_s=PATIENCE_S,
                on_output=lambda _, piece: got.append(piece),
            )
            expected = "".join(f"{i}\n" for i in range(1, lines + 1)).encode()
            if b"".join(got) != expected or result.stdout_total_bytes != len(expected):
                self.note(f"{name}: {sum(map(len, got))} of {len(expected)} bytes came live, {result.stderr!r}")

        await self._told(PATIENCE_S, call)

    async def input(self, slot: Slot, _: Path) -> None:
        """Input that is digested."""
        data = self.random.randbytes(self.random.choice((0, 100, 70_000, 1_500_000)))

        async def call(name: str) -> None:
            result = await slot.run(f"{self.evidence(name)}; sha256sum", stdin=data, timeout_s=PATIENCE_S)
            if result.stdout.split()[:1] != [hashlib.sha256(data).hexdigest()]:
                self.note(f"{name}: another digest: {result}")

        await self._told(PATIENCE_S, call)

    async def process(self, slot: Slot, _: Path) -> None:
        """A process that is read, written to and waited for."""

        async def call(name: str) -> None:
            process = await slot.spawn(f"{self.evidence(name)}; cat; echo end", stdin=True)
            stdin = process.stdin
            assert stdin is not None
            sent = self.random.randbytes(20_000).hex().encode()
            async with anyio.create_task_group() as tasks:

                async def write() -> None:
                    await stdin.send(sent)
                    await stdin.aclose()

                tasks.start_soon(write)
                got = b"".join([piece async for piece in process.stdout])
            ended = await process.wait(PATIENCE_S)
            if got != sent + b"end\n" or ended.exit_code != 0:
                self.note(f"{name}: {len(got)} of {len(sent) + 4} bytes from a process, exit code {ended.exit_code}")

        await self._told(2 * PATIENCE_S, self._ungrouped(call))

    def _ungrouped(self, call: Callable[[str], Awaitable[None]]) -> Callable[[str], Awaitable[None]]:
        async def alone(name: str) -> None:
            try:
                await call(name)
            except BaseExceptionGroup as group:
                error: BaseException = group
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                raise error from group

        return alone

    async def session(self, slot: Slot, _: Path) -> None:
        """State that stays."""
        async with slot.session() as session:
            for value in range(1, 4):

                async def call(name: str, value: int = value) -> None:
                    result = await session.run(f"{self.evidence(name)}; x=$((x + 1)); echo $x", timeout_s=PATIENCE_S)
                    if result.stdout != f"{value}\n":
                        self.note(f"{name}: a session said not {value} but: {result}")

                await self._told(PATIENCE_S, call)

    async def files(self, slot: Slot, _: Path) -> None:
        """A file that is written and read."""
        data = self.random.randbytes(self.random.choice((0, 1_000, 200_000)))
        path = f"f{self.count}"
        await slot.files.write_bytes(path, data)
        if await slot.files.read_bytes(path) != data:
            self.note(f"{path} is not what was written")

    async def trees(self, slot: Slot, directory: Path) -> None:
        """A tree that goes up and comes down."""
        self.count += 1
        source, target = directory / f"{self.tag}up{self.count}", directory / f"{self.tag}down{self.count}"
        contents = {f"{i}": self.random.randbytes(self.random.choice((0, 10, 50_000))) for i in range(12)}
        source.mkdir()
        for name, data in contents.items():
            (source / name).write_bytes(data)
        await slot.files.upload(source, "tree")
        await slot.files.download("tree", target)
        if {entry.name: entry.read_bytes() for entry in target.iterdir()} != contents:
            self.note("a tree came back otherwise")
        await slot.files.remove("tree", recursive=True)

    async def cancelled(self, slot: Slot, _: Path) -> None:
        """A command that nobody waits for any longer."""

        async def call(name: str) -> None:
            with anyio.move_on_after(self.random.uniform(0.0, 0.6)):
                await slot.run(f"{self.evidence(name)}; sleep {self.nap}", timeout_s=None)

        await self._watched("cancelled", 1.0, call)

    async def late(self, slot: Slot, _: Path) -> None:
        """A command that reaches its time limit."""
        limit_s = self.random.uniform(0.2, 1.0)

        async def call(name: str) -> None:
            result = await slot.run(f"{self.evidence(name)}; sleep {self.nap}", timeout_s=limit_s)
            if not result.timed_out:
                self.note(f"{name} ended with {result.exit_code} and was to reach its time limit: {result.stderr!r}")

        await self._watched("timed out", limit_s, call)

    async def checkpoint(self, slot: Slot, _: Path) -> None:
        """A state to which the slot returns, and from which others start."""
        self.count += 1
        await use_checkpoint(self, slot)

    async def reset(self, slot: Slot, _: Path) -> None:
        """A slot that is emptied."""
        await slot.files.write_bytes("before", b"")
        await slot.reset()
        if await slot.files.exists("before"):
            self.note("a reset left a file")


async def work(pool: SandboxPool, evidence: Callable[[str], str], directory: Path, seed: int) -> Record:
    """Have all workers work until they are done."""
    record = Record()
    async with anyio.create_task_group() as tasks:
        for number in range(WORKERS):
            worker = Worker(pool, record, evidence, number, seed)
            tasks.start_soon(worker.work, directory)
    record.wrong += await find_left_layers(pool)
    return record
