"""The channel against an honest peer: many conversations, credit both ways, broken streams, cancellation, lease."""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hermes_exec.channel import Channel, Data, End, Event, RemoteError
from hermes_exec.channel.frames import FrameType
from hermes_exec.channel.trace import TracedFrame
from hermes_exec.errors import ChannelLost, ErrorCause, ExecError, OutcomeUnknown, SandboxDied
from tests.support.peer import INPUT_WINDOW, Peer, talking
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def download(channel: Channel, size: int, window: int = 1 << 20, **params: Any) -> bytes:
    got = []
    async with channel.converse("down", {"size": size, **params}, window=window) as conversation:
        while (item := await conversation.receive()) is not None:
            if isinstance(item, Data):
                got.append(item.data)
        assert conversation.result() == {"method": "down"}
    return b"".join(got)


async def upload(channel: Channel, data: bytes) -> dict[str, Any]:
    async with channel.converse("up", {}) as conversation:
        for start in range(0, len(data), 100_000):
            await conversation.send(data[start : start + 100_000])
        await conversation.end()
        return await conversation.response()


async def test_calls_at_once_get_their_own_answers() -> None:
    async with talking() as (peer, channel):
        answers: dict[int, Any] = {}

        async def ask(i: int) -> None:
            answers[i] = await channel.call("echo", {"n": i})

        async with anyio.create_task_group() as tasks:
            for i in range(200):
                tasks.start_soon(ask, i)
        assert answers == {i: {"n": i} for i in range(200)}
        assert set(peer.executed.values()) == {1}
        assert channel.calls == 200


async def test_errors_of_the_runner() -> None:
    async with talking() as (_, channel):
        with pytest.raises(RemoteError, match="no such file") as caught:
            await channel.call("error", {"kind": "os", "message": "no such file", "errno": "ENOENT", "path": "/x"})
        assert (caught.value.kind, caught.value.errno, caught.value.path) == ("os", "ENOENT", "/x")


async def test_everything_arrives_in_order_and_within_the_window() -> None:
    async with talking() as (peer, channel):
        size = 3 << 20
        assert len(await download(channel, size, window=1 << 16)) == size
        assert len(await download(channel, 5000, window=1 << 12, piece=1)) == 5000
        events = []
        async with channel.converse("events", {"count": 3000}, window=1 << 12) as conversation:
            while (item := await conversation.receive()) is not None:
                assert isinstance(item, Event)
                events.append(item.event["n"])
        assert events == list(range(3000))
        async with channel.converse("down", {"size": 1}) as conversation:
            assert [await conversation.receive() for _ in range(3)] == [Data(5, b"\x01"), End(5), None]
        assert peer.opened == 1


async def test_input_waits_for_credit() -> None:
    async with talking() as (_, channel):
        data = bytes(range(256)) * 8192
        answer = await upload(channel, data)
        assert answer == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize(("way_s", "most"), [(0.0, 8 << 20), (0.05, 16 << 20), (0.3, 16 << 20)])
async def test_windows_grow_with_the_way(way_s: float, most: int) -> None:
    async with anyio.create_task_group() as tasks:
        peer = Peer(tasks)
        peer.keepalive_takes_s = way_s
        channel = await Channel.open(peer.open, lease_s=6)  # so that the way is measured once a second
        tasks.start_soon(channel.run)
        await until(lambda: channel._connection is not None and channel._connection._round_trip_s < way_s + 0.05)
        await channel.call("echo", {})
        said = [json.loads(frame.payload) for frame in peer.heard if frame.type == FrameType.REQUEST][-1]
        least = int(way_s * (128 << 20))
        assert min(least + (1 << 20), 16 << 20) <= said["window"] <= most
        assert min(least + INPUT_WINDOW, 16 << 20) <= said["input_window"] <= most
        await channel.aclose()
        tasks.cancel_scope.cancel()


async def test_slow_reader_does_not_hold_up_others() -> None:
    async with talking() as (_, channel):
        conversation = channel.begin("down", {"size": 4 << 20}, 1 << 16)
        await conversation.receive()
        for i in range(20):
            assert await channel.call("echo", {"n": i}) == {"n": i}
        await channel.finish(conversation)


@pytest.mark.parametrize("cut", [700, 900, 2_000, 70_000, 200_000])
async def test_broken_streams_lose_and_repeat_nothing(cut: int) -> None:
    async with talking(cuts=[1 << 60, cut, cut // 2 + 400, 5 * cut, 1 << 19]) as (peer, channel):
        data = bytes(range(256)) * 4096
        answers: list[Any] = []

        async def call(i: int) -> None:
            answers.append(await channel.call("echo", {"n": i}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upload, channel, data)
            tasks.start_soon(partial(download, channel, 1 << 20, window=1 << 17))
            for i in range(10):
                tasks.start_soon(call, i)
            await anyio.lowlevel.checkpoint()
            peer.cut()
        assert (await upload(channel, data))["sha256"] == hashlib.sha256(data).hexdigest()
        assert len(await download(channel, 100_000)) == 100_000
        assert sorted(a["n"] for a in answers) == list(range(10))
        assert set(peer.executed.values()) == {1}
        assert peer.opened > 1


async def test_acknowledged_in_the_end() -> None:
    async with talking(lease_s=0.6) as (peer, channel):
        await channel.call("echo", {})
        await download(channel, 200_000)
        await until(lambda: not peer.works)


async def test_leaving_early_cancels_and_waits_for_the_receipt() -> None:
    async with talking() as (peer, channel):
        async with channel.converse("hang", {}) as conversation:
            pass
        assert conversation.result() == {"canceled": True}
        with anyio.move_on_after(0.05) as scope:
            await channel.call("hang", {})
        assert scope.cancelled_caught
        with pytest.raises(OutcomeUnknown) as caught:
            await channel.call("hang", {}, timeout_s=0.05)
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert await channel.call("echo", {"n": 1}) == {"n": 1}
        assert all(work.cancelled.is_set() or work.method == "echo" for work in peer.works.values())


async def test_what_is_given_up_before_it_arrived_is_not_begun() -> None:
    async with talking() as (peer, channel):
        conversation = channel.begin("down", {"size": 1 << 20}, 1 << 14)
        await channel.finish(conversation, 0.0)
        peer.cut()
        await until(lambda: conversation.finished)
        assert not conversation.answered
        assert conversation.id not in peer.executed
        assert await channel.call("echo", {"n": 1}) == {"n": 1}


async def test_what_is_given_up_drains_by_itself() -> None:
    async with talking() as (peer, channel):
        conversation = channel.begin("down", {"size": 1 << 20}, 1 << 14)
        await until(lambda: peer.works)
        await channel.finish(conversation, 0.0)
        peer.cut()
        await until(lambda: conversation.answered)
        assert await channel.call("echo", {"n": 1}) == {"n": 1}


async def test_cancelled_at_every_await_the_channel_stays_usable() -> None:
    async with talking() as (peer, channel):
        data = bytes(INPUT_WINDOW * 2)
        for steps in range(60):
            scope = anyio.CancelScope()

            async def stop(scope: anyio.CancelScope = scope, steps: int = steps) -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                with scope:
                    await upload(channel, data) if steps % 2 else await download(channel, 1 << 18, window=1 << 15)
            assert await channel.call("echo", {"n": steps}) == {"n": steps}
        assert set(peer.executed.values()) == {1}
        assert peer.opened == 1


async def test_lost_for_good_tells_what_may_have_run() -> None:
    lost: list[ExecError] = []
    async with talking(lease_s=0.4) as (peer, channel):
        channel.on_lost = lost.append
        results: dict[str, Exception] = {}

        async def ask(name: str) -> None:
            try:
                await channel.call("hang", {"name": name})
            except ExecError as error:
                results[name] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "sent")
            await until(lambda: peer.works)
            peer.refuses = True
            peer.cut()
            while channel.state == "open":
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(ask, "not sent")
        assert isinstance(results["sent"], OutcomeUnknown)
        assert isinstance(results["sent"].__cause__, ChannelLost)
        assert isinstance(results["not sent"], ChannelLost)
        with pytest.raises(ChannelLost):
            await channel.call("echo", {})
        assert channel.state == "lost"
        assert lost == [channel.lost_reason]
        assert lost[0].cause is ErrorCause.INFRA


@pytest.mark.parametrize("outlived", [False, True])
async def test_loss_names_the_sandbox_and_the_silence_of_the_driver(
    outlived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended_s = 0.0
    monkeypatch.setattr("hermes_exec.channel.connection.boot_time", lambda: time.monotonic() + suspended_s)
    async with talking(lease_s=1.2, sandbox="me@host:box-1") as (peer, channel):
        assert channel.silence == ""
        suspended_s = 120.0
        assert channel.silence == "; this driver was silent for 120 s, longer than lease_s=1.2"
        if outlived:
            await until(lambda: channel.silence == "")  # a keepalive was answered
        peer.refuses = True
        peer.cut()
        await until(lambda: channel.state == "lost")
        message = str(channel.lost_reason)
        assert message.startswith("the stream to me@host:box-1 was lost and not restored within 1.2 s: ")
        assert ("this driver was silent for 120 s" in message) is not outlived


async def test_a_dead_sandbox_ends_the_channel_at_once() -> None:
    async def diagnose() -> ExecError:
        return SandboxDied("gone")

    async with talking(diagnose=diagnose) as (peer, channel):
        started = time.monotonic()
        peer.cut()
        await until(lambda: channel.state == "lost")
        assert isinstance(channel.lost_reason, SandboxDied)
        assert time.monotonic() - started < 30


async def test_another_boot_is_never_taken_for_the_sandbox() -> None:
    async with talking(lease_s=600) as (peer, channel):
        await channel.call("echo", {})
        peer.boot_id = "boot-2"
        peer.cut()
        await until(lambda: channel.state == "lost")
        assert isinstance(channel.lost_reason, SandboxDied)
        assert peer.executed == {1: 1}


async def test_a_stream_that_died_without_a_word_is_replaced() -> None:
    async with talking(lease_s=0.6) as (peer, channel):
        peer.silent = peer.stream
        await until(lambda: peer.opened > 1)
        assert await channel.call("echo", {"n": 1}) == {"n": 1}


async def test_blocked_loop_sends_keepalives_and_loses_nothing() -> None:
    seen = Seen()

    def sent() -> int:
        return sum((frame.direction, frame.type) == (">", FrameType.KEEPALIVE) for frame in seen.frames)

    async with talking(lease_s=0.6, trace=seen) as (peer, channel):
        begun = time.monotonic()
        while time.monotonic() < begun + 1.5 or sent() < 5:
            assert time.monotonic() < begun + 30
            time.sleep(0.05)  # noqa: ASYNC251 -- user code that blocks the loop is the case
        assert await channel.call("echo", {"n": 1}) == {"n": 1}
        beats = [frame for frame in peer.heard if frame.type == FrameType.KEEPALIVE]
        assert len(beats) >= 5
        assert peer.opened == 1


async def test_failed_from_outside_nothing_waits() -> None:
    async with talking() as (_, channel):
        async with anyio.create_task_group() as tasks:

            async def hang() -> None:
                with pytest.raises(OutcomeUnknown):
                    await channel.call("hang", {})

            tasks.start_soon(hang)
            await anyio.sleep(0.02)
            channel.fail(SandboxDied("seen dead"))
        with pytest.raises(SandboxDied):
            channel.begin("echo", {})


async def test_closing_is_harmless_when_repeated() -> None:
    lost: list[ExecError] = []
    async with talking() as (peer, channel):
        channel.on_lost = lost.append
        await channel.aclose(shutdown=True)
        await channel.aclose()
        assert channel.state == "closed"
        with pytest.raises(ChannelLost):
            await channel.call("echo", {})
        assert lost == []
        await until(lambda: any(frame.type == FrameType.GOODBYE for frame in peer.heard))


async def test_trace_sees_every_frame_and_no_content() -> None:
    seen = Seen()
    async with talking(trace=seen) as (peer, channel):
        await channel.call("echo", {"secret": "hush", "duration_s": 5, "exit_code": 0})
        with pytest.raises(RemoteError):
            await channel.call("error", {"kind": "os", "message": "hush"})
        peer.cut()
        await channel.call("echo", {})
    kinds = [(frame.direction, FrameType(frame.type).name, frame.id) for frame in seen.frames]
    assert (">", "REQUEST", 1) in kinds
    assert (">", "ACK", 1) in kinds
    assert [method for _, method, _ in seen.calls] == ["echo", "error", "echo"]
    answers = [frame for frame in seen.frames if frame.type == FrameType.RESPONSE]
    assert [(frame.exec_s, frame.error) for frame in answers[:2]] == [(5.0, None), (None, "os")]
    assert seen.streams == 2
    assert seen.ends == ["ChannelLost"]
    assert "hush" not in repr(vars(seen))


class Seen:
    """A trace that is kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, float]] = []
        self.frames: list[TracedFrame] = []
        self.ends: list[str] = []
        self.streams = 0

    def on_call(self, number: int, method: str, since: float) -> None:
        self.calls.append((number, method, since))

    def on_frame(self, frame: TracedFrame) -> None:
        self.frames.append(frame)

    def on_connect(self, handshake_s: float) -> None:
        self.streams += 1

    def on_lost(self, why: str) -> None:
        self.ends.append(why)
