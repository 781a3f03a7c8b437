"""Episodes of a driver with a hostile runner: each ends every call with a result or an error that callers know."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from random import Random
from typing import Any
from unittest.mock import patch

import anyio

from hermes_exec import ExecError
from hermes_exec.channel import Channel, connection
from hermes_exec.results import KillReceipt
from hermes_exec.slot.answers import SlotFacts
from hermes_exec.slot.checkpoint import Checkpoint, CheckpointAnswer, CheckpointRequest
from hermes_exec.slot.scope import SlotScope
from hermes_exec.slot.slot import Slot
from tests.fuzz.runner import HostileRunner
from tests.fuzz.seeds import SLOT

PATIENCE_S = 0.1
"""How long calls that wait for what was left out may wait before the channel is closed under them."""
HANG_S = 30.0
ROUNDS = 100
EXPECTED = (ExecError, OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass
class Told:
    """What became of an episode; `wrong` is what should not have been."""

    seed: int
    frames: int = 0
    calls: int = 0
    results: int = 0
    wrong: list[str] = field(default_factory=list)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """A handshake that is not answered is given up soon."""
    with patch.object(connection, "HANDSHAKE_TIMEOUT_S", 0.2):
        yield


async def _run(slot: Slot) -> None:
    await slot.run("true", timeout_s=5)


async def _live(slot: Slot) -> None:
    await slot.run(["true"], timeout_s=None, stdin=b"input", on_output=lambda *_: None)


async def _session(slot: Slot) -> None:
    async with slot.session() as session:
        await session.run("cd /", timeout_s=5)


async def _process(slot: Slot) -> None:
    process = await slot.spawn("cat", stdin=True)
    assert process.stdin is not None
    await process.stdin.send(b"input")
    await process.stdout.receive()
    await process.output()
    await process.wait(5)
    await process.kill()


async def _connect(slot: Slot) -> None:
    async with await slot.connect(80) as stream:
        await stream.send(b"x")
        while True:
            await stream.receive()


async def _listen(slot: Slot) -> None:
    async with slot.listen("/socket") as listener, await listener.accept() as stream:
        await stream.send(b"x")
        while True:
            await stream.receive()


async def _listen_on_a_port(slot: Slot) -> None:
    async with slot.listen(port=0, shared_loopback=True) as listener, await listener.accept() as stream:
        await stream.send(b"x")
        while True:
            await stream.receive()


async def _read(slot: Slot) -> None:
    await slot.files.read_bytes("a")


async def _write(slot: Slot) -> None:
    await slot.files.write_bytes("a", b"input")


async def _look(slot: Slot) -> None:
    await slot.files.stat("a")
    await slot.files.list(".")
    await slot.files.search("x")
    await slot.files.glob("*")


async def _processes(slot: Slot) -> None:
    await slot.processes()
    await slot.kill_all()


async def _checkpoint(slot: Slot) -> None:
    checkpoint = await slot.checkpoint()
    await slot.restore(checkpoint)
    await checkpoint.sizes()
    await checkpoint.drop()


async def _trees(slot: Slot) -> None:
    with tempfile.TemporaryDirectory(prefix="hermes-exec-fuzz-") as directory:
        try:
            await slot.files.download("d", os.path.join(directory, "down"))
        finally:
            for below, _, _ in os.walk(directory):
                os.chmod(below, 0o700)


CALLS: tuple[Callable[[Slot], Awaitable[None]], ...] = (
    *[_run, _live, _session, _process, _connect, _listen, _listen_on_a_port, _read, _write, _look, _processes] * 2,
    _checkpoint,
    _trees,
)


async def use(slot: Slot, rng: Random, told: Told) -> None:
    """A few calls at once; whatever they raise must be of the errors that callers know."""
    async with anyio.create_task_group() as tasks:
        for _ in range(rng.randint(1, 8)):
            tasks.start_soon(_one, rng.choice(CALLS), slot, told)


async def _one(call: Callable[[Slot], Awaitable[None]], slot: Slot, told: Told) -> None:
    told.calls += 1
    try:
        await call(slot)
    except EXPECTED:
        return
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        told.wrong.append(f"{call.__name__} raised {type(error).__name__}: {str(error)[:200]}")
        return
    told.results += 1


async def channel_episode(seed: int) -> Told:
    """One channel and one slot, with a runner of some hostility, until all calls have ended."""
    rng, told = Random(seed), Told(seed)
    try:
        with anyio.fail_after(HANG_S):
            async with _channel(rng, told) as channel:
                slot = _slot(channel)
                for _ in range(ROUNDS):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(_close_late, channel)
                        await use(slot, rng, told)
                        tasks.cancel_scope.cancel()
                    if channel.lost_reason is not None:
                        break
    except TimeoutError:
        told.wrong.append(f"it did not end within {HANG_S:g} s")
    except ExecError:
        return told  # already the handshake
    return told


async def _close_late(channel: Channel) -> None:
    """What waits for something that was left out ends with the channel: as when a pool closes."""
    await anyio.sleep(PATIENCE_S)
    await channel.aclose()


@contextlib.asynccontextmanager
async def _channel(rng: Random, told: Told) -> AsyncIterator[Channel]:
    async with anyio.create_task_group() as tasks:
        runner = HostileRunner(rng, rng.choice([0.01, 0.03, 0.1, 0.5]), tasks)
        failure: ExecError | None = None
        try:
            channel = await Channel.open(runner.open, lease_s=rng.choice([0.2, 60.0]))
        except ExecError as error:
            failure = error
        else:
            tasks.start_soon(channel.run)
            try:
                yield channel
            finally:
                with anyio.CancelScope(shield=True):
                    await channel.aclose()
        runner.stop()
        told.frames += runner.frames
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Store:
    """Asks the runner for checkpoints as a pool does, and sets nothing back."""

    scope: SlotScope

    async def create(self, request: CheckpointRequest) -> Checkpoint:
        params = {"checkpoint": "c1", "processes": request.processes, "holds": request.holds or "root"}
        answer = CheckpointAnswer.parse(await self.scope.call("slot.checkpoint", params, timeout_s=request.timeout_s))
        return Checkpoint(
            id="c1",
            image=None,
            answer=answer,
            session_ids={},
            left_out=(),
            states=request.states,
            on_fork=request.on_fork,
            owner=self,
        )

    @contextlib.asynccontextmanager
    async def use(self, checkpoint: Checkpoint) -> AsyncIterator[None]:
        assert checkpoint.id == "c1"
        yield

    async def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.start(await self.scope.call("slot.restore", {"checkpoint": checkpoint.id}, timeout_s=5))

    async def drop(self, checkpoint: Checkpoint) -> None:
        checkpoint.dropped = True

    async def save(self, checkpoint: Checkpoint, path: str | PathLike[str]) -> None:
        raise NotImplementedError

    async def measure(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        return await self.scope.call("checkpoint.info", {"checkpoint": checkpoint.id}, timeout_s=5)


def _slot(channel: Channel) -> Slot:
    async def explain_loss(error: ExecError) -> ExecError:
        return error

    async def reset() -> None:
        return

    def left(_: KillReceipt) -> None:
        return

    store = Store()
    scope = store.scope = SlotScope("s0", "sandbox", SlotFacts.parse(SLOT), None, channel, explain_loss, left)
    return Slot(id="s0", scope=scope, backend="hostile", image=None, reset=reset, checkpoints=store)
