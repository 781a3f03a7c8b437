"""A sandbox that wants to harm its driver: each attack ends in ProtocolError, nothing hangs, memory stays bounded."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_exec.channel import Channel, RemoteError
from hermes_exec.channel.frames import HEADER, MORE, Frame, FrameType, encode, encode_position, encode_positioned
from hermes_exec.errors import ChannelLost, ExecError, ProtocolError
from tests.support.peer import Attack, Peer, talking
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]


def answer_request(make: Callable[[int], bytes]) -> Attack:
    """Answer the first request with these bytes instead of an answer."""

    def attack(peer: Peer, frame: Frame) -> bytes | None:
        return make(frame.conversation) if frame.type == FrameType.REQUEST else None

    return attack


ATTACKS: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda _: os.urandom(100_000) + b"\xff" * 32,
    "oversized frame": lambda n: HEADER.pack(1 << 31, FrameType.DATA, 0, 0, n),
    "unknown type": lambda n: HEADER.pack(0, 77, 0, 0, n),
    "a request of its own": lambda n: encode(FrameType.REQUEST, n, b"{}"),
    "hello within a conversation": lambda _: encode(FrameType.HELLO, 0, b"{}"),
    "id of the future": lambda n: encode(FrameType.RESPONSE, n + 1, b'{"result": {}}'),
    "id that never was": lambda _: encode_positioned(FrameType.DATA, 2**63, 1, 0, b"x"),
    "position that jumps": lambda n: encode_positioned(FrameType.DATA, n, 1, 5, b"x"),
    "position that goes back": lambda n: encode_positioned(FrameType.DATA, n, 1, 0, b"x") * 2,
    "no position": lambda n: encode(FrameType.DATA, n, b"1234"),
    "more than the window": lambda n: b"".join(
        encode_positioned(FrameType.DATA, n, 1, i * 60_000, bytes(60_000)) for i in range(40)
    ),
    "a flood of tiny frames": lambda n: b"".join(
        encode_positioned(FrameType.DATA, n, 1, i, b"x") for i in range(100_000)
    ),
    "a flood of large events": lambda n: b"".join(
        encode_positioned(FrameType.EVENT, n, 0, i * 60_000, json.dumps({"event": "x" * (60_000 - 13)}).encode())
        for i in range(60)
    ),
    "event that is no object": lambda n: encode_positioned(FrameType.EVENT, n, 0, 0, b"[1]"),
    "data after the end": lambda n: (
        encode_positioned(FrameType.END, n, 1, 0) + encode_positioned(FrameType.DATA, n, 1, 0, b"x")
    ),
    "data after a part of the response": lambda n: (
        encode(FrameType.RESPONSE, n, b"{", flags=MORE) + encode_positioned(FrameType.DATA, n, 1, 0, b"x")
    ),
    "bad json": lambda n: encode(FrameType.RESPONSE, n, b'{"result": '),
    "nested json": lambda n: encode(FrameType.RESPONSE, n, b'{"result":' + b"[" * 60_000),
    "response that is no object": lambda n: encode(FrameType.RESPONSE, n, b"[]"),
    "response without a result": lambda n: encode(FrameType.RESPONSE, n, b'{"result": 3}'),
    "two responses": lambda n: encode(FrameType.RESPONSE, n, b'{"result": {}}') * 2,
    "credit for nothing": lambda n: encode_position(FrameType.CREDIT, n, 1 << 40),
    "resumed unasked": lambda n: encode(FrameType.RESUMED, n, b"\1" + bytes(8)),
    "keepalives without end": lambda _: encode(FrameType.KEEPALIVE) * 20_000,
    "credits without end": lambda n: encode_position(FrameType.CREDIT, n, 0) * 20_000,
    "goodbye that is no object": lambda _: encode(FrameType.GOODBYE, 0, b"3"),
    "goodbye with a reproach": lambda _: encode(FrameType.GOODBYE, 0, b'{"reason": "protocol", "message": "you"}'),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_ends_in_protocol_error(name: str) -> None:
    async with talking(attack=answer_request(ATTACKS[name])) as (peer, channel):
        if name == "two responses":
            await channel.call("echo", {})
        else:
            with pytest.raises(ProtocolError):
                async with channel.converse("echo", {}, window=1 << 20) as conversation:
                    if "flood" in name or "window" in name:
                        await until(lambda: channel.state == "lost")
                    await conversation.response()
        await until(lambda: channel.state == "lost")
        assert isinstance(channel.lost_reason, ProtocolError)
        assert channel.lost_reason.retryable is False
        with pytest.raises(ProtocolError):
            await channel.call("echo", {})
        assert peer.opened == 1


async def test_response_without_end_is_bounded() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def attack(peer: Peer, frame: Frame) -> bytes | None:
        if frame.type != FrameType.REQUEST:
            return None
        peer.tasks.start_soon(pour, peer, encode(FrameType.RESPONSE, frame.conversation, bytes(65_536), flags=MORE))
        return b""

    async def pour(peer: Peer, data: bytes) -> None:
        assert peer.stream is not None
        try:
            while True:
                await peer.stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async with talking(attack=attack) as (_, channel):
        with pytest.raises(ProtocolError, match="without end"):
            await channel.call("echo", {})
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 200 << 10


@pytest.mark.parametrize(
    "ready",
    [
        b"{}",
        b'{"boot_id": 3}',
        b'{"boot_id": "boot-1", "input_window": 0}',
        b'{"boot_id": "boot-1", "input_window": 99999999999}',
        b'{"boot_id": "other", "input_window": 4096}',
        b"[",
    ],
)
async def test_bad_ready(ready: bytes) -> None:
    def attack(peer: Peer, frame: Frame) -> bytes | None:
        if frame.type != FrameType.HELLO:
            return None
        welcome = {"version": 1, "boot_id": "boot-1", "nonce": "00" * 16}
        return encode(FrameType.WELCOME, payload=json.dumps(welcome).encode()) + encode(FrameType.READY, payload=ready)

    with pytest.raises(ProtocolError):
        await refused(attack)


@pytest.mark.parametrize(
    "welcome", [b"{}", b'{"version": 2}', b'{"version": 1, "boot_id": 7}', b"\xff", b'{"version": 1}' * 2]
)
async def test_bad_welcome(welcome: bytes) -> None:
    def attack(peer: Peer, frame: Frame) -> bytes | None:
        return encode(FrameType.WELCOME, payload=welcome) if frame.type == FrameType.HELLO else None

    with pytest.raises(ProtocolError):
        await refused(attack)


async def test_a_sandbox_that_only_keeps_alive_does_not_hold_the_handshake() -> None:
    def attack(peer: Peer, frame: Frame) -> bytes | None:
        return encode(FrameType.KEEPALIVE) * 100 if frame.type == FrameType.HELLO else None

    with pytest.raises(ProtocolError):
        await refused(attack)


async def test_denied_is_not_a_protocol_error() -> None:
    def attack(peer: Peer, frame: Frame) -> bytes | None:
        goodbye = b'{"reason": "denied", "message": "claimed"}'
        return encode(FrameType.GOODBYE, payload=goodbye) if frame.type == FrameType.HELLO else None

    with pytest.raises(ChannelLost, match="denied"):
        await refused(attack)


async def refused(attack: Attack) -> None:
    """Open a channel to a peer that attacks during the handshake; raises what that raises."""
    failure: ExecError | None = None
    async with anyio.create_task_group() as tasks:
        peer = Peer(tasks)
        peer.attack = attack
        try:
            with anyio.fail_after(10):
                await Channel.open(peer.open, lease_s=5)
        except ExecError as error:
            failure = error
        tasks.cancel_scope.cancel()
        if peer.stream is not None:
            peer.stream.close_now()
    if failure is not None:
        raise failure


async def test_another_sandbox_cannot_take_the_place_of_the_first() -> None:
    async with talking(lease_s=1) as (peer, channel):
        await channel.call("echo", {})
        peer.key = bytes(32)
        peer.cut()
        await until(lambda: channel.state == "lost")
        assert isinstance(channel.lost_reason, ProtocolError)


hostile_frames = st.lists(
    st.one_of(
        st.builds(
            lambda kind, number, payload, channel, flags: encode(FrameType(kind), number, payload, channel, flags),
            st.sampled_from([int(t) for t in FrameType]),
            st.integers(0, 4),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [b"{}", b'{"result": {}}', b'{"error": {}}', bytes(8), bytes(8) + b"data", b"\1" + bytes(8)]
                ),
            ),
            st.integers(0, 9),
            st.integers(0, 1),
        ),
        st.binary(max_size=60),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(hostile_frames)
def test_any_frames_end_in_an_answer_or_an_error(frames: list[bytes]) -> None:
    async def main() -> None:
        data = b"".join(frames)

        def attack(peer: Peer, frame: Frame) -> bytes | None:
            if frame.type != FrameType.REQUEST or frame.conversation != 2:
                return None
            peer.tasks.start_soon(then_close, peer)
            return data

        async def then_close(peer: Peer) -> None:
            peer.refuses = True
            peer.cut()

        async with talking(lease_s=0.2, attack=attack) as (_, channel), anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, channel)

    async def ask(channel: Channel) -> None:
        with contextlib.suppress(ExecError, RemoteError):
            await channel.call("echo", {})

    anyio.run(main)
