"""A runner in Python over socket pairs: honest unless told otherwise, with streams that break where a test wants."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_exec.aio.streams import FdStream
from hermes_exec.channel import Channel
from hermes_exec.channel.frames import (
    MAX_DATA,
    MORE,
    Decoder,
    Frame,
    FrameType,
    encode,
    encode_position,
    encode_positioned,
)

BROKEN = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError)
INPUT_WINDOW = 1 << 17
Attack = Callable[["Peer", Frame], bytes | None]


@dataclass
class Work:
    """One conversation, as a runner keeps it."""

    id: int
    method: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    window: int = 1 << 20
    input_window: int = INPUT_WINDOW
    frames: list[tuple[int, FrameType, int, bytes]] = field(default_factory=list)
    position: int = 0
    consumed: int = 0
    room: anyio.Event = field(default_factory=anyio.Event)
    response: bytes | None = None
    input: bytearray = field(default_factory=bytearray)
    granted: int = 0
    input_ended: bool = False
    input_news: anyio.Event = field(default_factory=anyio.Event)
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    attached: bool = True


class Peer:
    """The runner. `cuts` are the numbers of bytes after which each further stream breaks, in either direction."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.tasks = tasks
        self.key = b""
        self.boot_id = "boot-1"
        self.works: dict[int, Work] = {}
        self.executed: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.requested: set[int] = set()
        self.cuts: list[int] = []
        self.opened = 0
        self.stream: FdStream | None = None
        self.budget = 1 << 60
        self.refuses = False
        self.keepalive_takes_s = 0.0
        self.silent: FdStream | None = None
        self.attack: Attack | None = None
        self.heard: list[Frame] = []

    async def open(self) -> FdStream:
        """What a backend's `open` does."""
        if self.refuses:
            raise OSError("the test refuses streams")
        ours, theirs = socket.socketpair()
        self.opened += 1
        budget = self.cuts.pop(0) if self.cuts else 1 << 60
        self.tasks.start_soon(self.serve, FdStream(theirs.detach()), budget)
        return FdStream(ours.detach())

    def cut(self) -> None:
        """Break the stream that is open."""
        if self.stream is not None:
            self.stream.close_now()

    def write(self, data: bytes) -> None:
        """Send on the stream that is open, as far as it goes."""
        stream = self.stream
        if stream is None or stream is self.silent:
            return
        with contextlib.suppress(*BROKEN):
            stream.send_nowait(data[: self.budget])
            if stream.pending_bytes:
                self.tasks.start_soon(self._drain, stream)
        self.budget -= len(data)
        if self.budget <= 0:
            stream.close_now()

    @staticmethod
    async def _drain(stream: FdStream) -> None:
        with contextlib.suppress(*BROKEN, OSError):
            await stream.drain()

    async def serve(self, stream: FdStream, budget: int) -> None:
        """Speak on one stream until it ends."""
        self.stream, self.budget = stream, budget
        for work in self.works.values():
            work.attached = False
        decoder = Decoder()
        with contextlib.suppress(*BROKEN, OSError):
            while True:
                data = await stream.receive()
                self.budget -= len(data)
                for frame in decoder.feed(data):
                    self.heard.append(frame)
                    self.on_frame(frame)
                if self.budget <= 0:
                    break
        await stream.aclose()

    def on_frame(self, frame: Frame) -> None:
        """Do what the protocol says, or what the test's attack says."""
        if frame.type == FrameType.REQUEST:
            self.requested.add(frame.conversation)
        if self.attack is not None and (answer := self.attack(self, frame)) is not None:
            self.write(answer)
            return
        kind, _, _, number, payload = frame
        if kind == FrameType.HELLO:
            self._hello(json.loads(payload))
        elif kind == FrameType.PROOF:
            self._ready()
        elif kind == FrameType.KEEPALIVE:
            if self.keepalive_takes_s:
                self.tasks.start_soon(self._answer_late)
            else:
                self.write(encode(FrameType.KEEPALIVE))
        elif kind == FrameType.REQUEST:
            self._request(frame)
        elif kind == FrameType.RESUME:
            self._resume(number, int.from_bytes(payload, "big"))
        elif number:
            assert number in self.requested, f"{frame} for a request that never came"
            if number in self.works:
                self._about(self.works[number], kind, payload)

    async def _answer_late(self) -> None:
        await anyio.sleep(self.keepalive_takes_s)
        self.write(encode(FrameType.KEEPALIVE))

    def _hello(self, hello: dict[str, Any]) -> None:
        nonce = os.urandom(16)
        welcome = {"version": 1, "boot_id": self.boot_id, "nonce": nonce.hex()}
        if "claim" in hello:
            self.key = bytes.fromhex(hello["claim"])
        else:
            text = b"runner" + bytes.fromhex(hello["nonce"]) + nonce + self.boot_id.encode()
            welcome["proof"] = hmac.new(self.key, text, hashlib.sha256).hexdigest()
        self.write(encode(FrameType.WELCOME, payload=json.dumps(welcome).encode()))
        if "claim" in hello:
            self._ready()

    def _ready(self) -> None:
        ready = {"boot_id": self.boot_id, "input_window": INPUT_WINDOW, "os": "linux", "arch": "amd64"}
        self.write(encode(FrameType.READY, payload=json.dumps(ready).encode()))

    def _request(self, frame: Frame) -> None:
        assert not frame.flags & MORE
        number, said = frame.conversation, json.loads(frame.payload)
        assert number not in self.works
        assert number not in self.acked
        work = Work(number, said["method"], said["params"], said["window"], said["input_window"])
        self.works[number] = work
        self.executed[number] += 1
        self.tasks.start_soon(self._work, work)

    def _resume(self, number: int, position: int) -> None:
        work = self.works.get(number)
        if work is None:
            assert number not in self.acked
            self.write(encode(FrameType.RESUMED, number, b"\0" + bytes(8)))
            return
        work.attached = True
        self.write(encode(FrameType.RESUMED, number, b"\1" + len(work.input).to_bytes(8, "big")))
        self.write(encode_position(FrameType.CREDIT, number, work.granted))
        for at, kind, channel, data in work.frames:
            if at >= position:
                self.write(encode_positioned(kind, number, channel, at, data))
            elif at + len(data) > position:
                self.write(encode_positioned(kind, number, channel, position, data[position - at :]))
        if work.response is not None:
            self.write(encode(FrameType.RESPONSE, number, work.response))

    def _about(self, work: Work, kind: int, payload: bytes) -> None:
        if kind == FrameType.CREDIT:
            work.consumed = int.from_bytes(payload, "big")
            assert work.consumed <= work.position
            work.room.set()
        elif kind == FrameType.ACK:
            del self.works[work.id]
            self.acked.add(work.id)
        elif kind == FrameType.CANCEL:
            work.cancelled.set()
            work.input_news.set()
            work.room.set()
        else:
            position = int.from_bytes(payload[:8], "big")
            assert position <= len(work.input)
            work.input += payload[8 + len(work.input) - position :]
            work.input_ended |= kind == FrameType.END
            work.input_news.set()

    async def emit(self, work: Work, kind: FrameType, channel: int, data: bytes = b"") -> None:
        """Send a frame of a conversation when the driver gave credit for it."""
        while work.position - work.consumed >= work.window and not work.cancelled.is_set():
            work.room = anyio.Event()
            await work.room.wait()
        if work.cancelled.is_set():
            return
        work.frames.append((work.position, kind, channel, data))
        if work.attached:
            self.write(encode_positioned(kind, work.id, channel, work.position, data))
        work.position += len(data)

    async def _work(self, work: Work) -> None:
        result: dict[str, Any] = {"method": work.method}
        if work.method == "echo":
            result = work.params
        elif work.method == "down":
            left = work.params["size"]
            while left:
                piece = min(left, work.params.get("piece", MAX_DATA))
                await self.emit(work, FrameType.DATA, 5, bytes([left % 251]) * piece)
                left -= piece
            await self.emit(work, FrameType.END, 5)
        elif work.method == "events":
            for i in range(work.params["count"]):
                await self.emit(work, FrameType.EVENT, 0, json.dumps({"event": "n", "n": i}).encode())
        elif work.method == "up":
            result = await self._take(work)
        elif work.method == "hang":
            await work.cancelled.wait()
            result = {"canceled": True}
        work.response = json.dumps({"error": work.params} if work.method == "error" else {"result": result}).encode()
        if work.attached:
            self.write(encode(FrameType.RESPONSE, work.id, work.response))

    async def _take(self, work: Work) -> dict[str, Any]:
        while True:
            assert len(work.input) - work.granted <= work.input_window + MAX_DATA
            if len(work.input) - work.granted >= work.input_window // 4:
                work.granted = len(work.input)
                self.write(encode_position(FrameType.CREDIT, work.id, work.granted))
            if work.input_ended or work.cancelled.is_set():
                break
            work.input_news = anyio.Event()
            await work.input_news.wait()
        return {"size": len(work.input), "sha256": hashlib.sha256(work.input).hexdigest()}


@contextlib.asynccontextmanager
async def talking(
    lease_s: float = 20.0, attack: Attack | None = None, **options: Any
) -> AsyncIterator[tuple[Peer, Channel]]:
    """A peer and a channel to it that is served. Nothing hangs: everything is over within 90 s."""
    with anyio.fail_after(90):
        async with anyio.create_task_group() as tasks:
            peer = Peer(tasks)
            peer.cuts = options.pop("cuts", [])
            peer.attack = attack
            channel = await Channel.open(peer.open, lease_s=lease_s, **options)
            tasks.start_soon(channel.run)
            try:
                yield peer, channel
            finally:
                with anyio.CancelScope(shield=True):
                    await channel.aclose()
                if peer.stream is not None:
                    peer.stream.close_now()
                tasks.cancel_scope.cancel()
