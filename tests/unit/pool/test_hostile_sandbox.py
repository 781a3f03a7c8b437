"""A pool whose sandboxes send false answers: the call ends in ProtocolError, the sandbox is destroyed and replaced, and
nothing hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, TaskGroup

from hermes_exec import Died, ExecError, LaunchError, OutcomeUnknown, PoolEvent, ProtocolError, SandboxPool
from hermes_exec.channel.connection import ChannelConnection
from hermes_exec.channel.frames import HEADER, Frame, FrameType, encode, encode_positioned
from hermes_exec.slot import run
from hermes_exec.slot.answers import SlotFacts
from hermes_exec.slot.command import command_params
from hermes_exec.slot.scope import SlotScope
from tests.support.hostile import Backend, registered
from tests.support.peer import Peer, talking

pytestmark = pytest.mark.anyio
ISOLATION = dict.fromkeys(("filesystem", "processes", "users", "network"), "as it says")
FACTS = {"workspace": "/w", "home": "/h", "tmp": "/t", "uid": 1, "gid": 1, "user_name": "u", "shell": "sh"}
CREATED = {**FACTS, "shells": {}, "isolation": {**ISOLATION, "level": "none", "limits": {}, "price_ms": 0.0}}
RESET = {
    "clean": True,
    "uid": 1000,
    "gid": 1000,
    "killed": {"found": 0, "killed": 0, "left": 0, "rounds": 1, "handles": [], "duration_s": 0.0},
}
ATTACKS: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda _: os.urandom(4096) + b"\xff" * 32,
    "endless frame": lambda n: HEADER.pack(1 << 31, FrameType.DATA, 0, 0, n),
    "endless frames": lambda n: b"".join(
        encode_positioned(FrameType.DATA, n, 1, i * 50_000, bytes(50_000)) for i in range(6)
    ),
    "somebody else's id": lambda n: encode(FrameType.RESPONSE, n + 7, b'{"result": {}}'),
    "an answer of a wrong shape": lambda n: encode(FrameType.RESPONSE, n, b'{"result": {"exit_code": "none"}}'),
}


class Attacker:
    """A runner that attacks at its first command."""

    def __init__(self, tasks: TaskGroup, attack: Callable[[int], bytes], refused: set[str]) -> None:
        self.peer = Peer(tasks)
        self.peer.attack = self.answer
        self.attack, self.refused = attack, refused
        self.sent = 0

    async def open(self) -> ByteStream:
        return await self.peer.open()

    def stop(self) -> None:
        self.peer.cut()

    def answer(self, peer: Peer, frame: Frame) -> bytes | None:
        if frame.type == FrameType.ACK:
            return b""
        if frame.type == FrameType.CREDIT:
            return self.more(frame)
        if frame.type != FrameType.REQUEST:
            return None
        answers: dict[str, Any] = {"slot.create": CREATED, "slot.reset": RESET, "sandbox.info": {}}
        method = json.loads(frame.payload)["method"]
        if method in self.refused:
            full = {"error": {"kind": "os", "message": "", "errno": "ENOSPC", "path": "/w"}}
            return encode(FrameType.RESPONSE, frame.conversation, json.dumps(full).encode())
        if method == "exec.run":
            return self.attack(frame.conversation)
        return encode(FrameType.RESPONSE, frame.conversation, json.dumps({"result": answers.get(method, {})}).encode())

    def more(self, frame: Frame) -> bytes:
        """Send without end, but never more than there is credit for."""
        self.sent = max(self.sent, 300_000)
        out = b""
        while self.sent + 50_000 < int.from_bytes(frame.payload, "big") + (1 << 20):
            out += encode_positioned(FrameType.DATA, frame.conversation, 1, self.sent, bytes(50_000))
            self.sent += 50_000
        return out


async def test_a_sandbox_that_refuses_a_slot_is_no_oserror_of_the_caller() -> None:
    refused: set[str] = set()
    async with anyio.create_task_group() as tasks:
        backend = Backend(lambda _: Attacker(tasks, lambda _: b"", refused))
        with anyio.fail_after(60), registered(backend):
            async with (
                SandboxPool("hostile", slots_per_sandbox=2, max_sandboxes=1, acquire_timeout_s=10) as pool,
                pool.slot(),
            ):
                refused.add("slot.create")  # that of the second slot
                with pytest.raises(LaunchError, match="No space left"):
                    await pool.acquire()
        tasks.cancel_scope.cancel()


async def test_a_sandbox_that_tells_of_a_start_again_and_again_does_not_put_off_the_end_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("RESULT_GRACE_S", 0.5), ("CANCEL_GRACE_S", 0.1), ("PROMPT_S", 0.0)):
        monkeypatch.setattr(run, name, seconds)
    started = b'{"event":"started","pid":5}'

    async def tell(peer: Peer, number: int) -> None:
        for at in count(0, len(started)):
            peer.write(encode_positioned(FrameType.EVENT, number, 0, at, started))
            await anyio.sleep(0.05)

    def attack(peer: Peer, frame: Frame) -> bytes | None:
        if frame.type == FrameType.REQUEST:
            peer.tasks.start_soon(tell, peer, frame.conversation)
        return b"" if frame.type in (FrameType.REQUEST, FrameType.CANCEL, FrameType.CREDIT) else None

    async with talking(attack=attack) as (_, channel):

        async def explain_loss(error: ExecError) -> ExecError:
            return error

        facts = SlotFacts.parse(CREATED)
        scope = SlotScope("s0", "sandbox", facts, None, channel, explain_loss, lambda _: None)
        with pytest.raises(OutcomeUnknown, match="its result did not arrive"):
            await run.execute(scope, command_params(scope, "true"), timeout_s=0.1)


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_sandbox_that_breaks_the_protocol_is_destroyed_and_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is waited for from such a sandbox, not even that it stops."""
    monkeypatch.setattr(run, "CANCEL_WAIT_S", 1e6)
    # A busy machine looks like a long way, whose windows are larger: credit comes after more than the first frames.
    monkeypatch.setattr(ChannelConnection, "window", lambda _, least: least)
    events: list[PoolEvent] = []
    async with anyio.create_task_group() as tasks:
        backend = Backend(lambda _: Attacker(tasks, ATTACKS[name], set()))
        with anyio.fail_after(120), registered(backend):
            async with SandboxPool("hostile", slots_per_sandbox=1, max_sandboxes=1, on_event=events.append) as pool:
                for _ in range(2):
                    async with pool.slot() as slot:
                        with pytest.raises(ProtocolError) as caught:
                            await slot.run("true", timeout_s=None)
                        assert caught.value.sandbox in (None, slot.sandbox)
        tasks.cancel_scope.cancel()
    assert all(sandbox.dead for sandbox in backend.made)
    assert len(backend.made) == 2
    assert len([event for event in events if isinstance(event, Died)]) == 2
