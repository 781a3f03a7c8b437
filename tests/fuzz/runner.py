"""A runner that answers everything as it should, and changes what it says before it says it, as a seed decides."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import tarfile
from collections import deque
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_exec.aio.streams import FdStream
from hermes_exec.channel.frames import Decoder, Frame, FrameType, encode, encode_position, encode_positioned
from tests.fuzz import mutate
from tests.fuzz.seeds import EXIT, FILE, FOUND, LISTED, PROCESS, READY, RECEIPT, SLOT, as_json, tree

BROKEN = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
TREE = tree(tarfile.PAX_FORMAT)
CHECKPOINT = {
    "layers": ["1"],
    "sessions": {"s1": {"cwd": "/workspace"}},
    "workdir": "/workspace",
    "copied": True,
    "killed": RECEIPT,
}
RESET = {"clean": True, "killed": RECEIPT, "differences": [], "uid": 1000, "gid": 1000}
Said = list[tuple[FrameType, int, bytes]]
"""Kind, channel and content of what comes before a response."""
STARTED: Said = [(FrameType.EVENT, 0, b'{"event":"started","pid":5}')]
OUTPUT: Said = [(FrameType.DATA, 1, b"abc"), (FrameType.DATA, 2, b"xyz")]
PIECE: Said = [(FrameType.DATA, 1, b"abc"), (FrameType.END, 1, b"")]
CONNECTED: Said = [
    (FrameType.EVENT, 0, b'{"event":"connected"}'),
    (FrameType.DATA, 0, b"hello"),
    (FrameType.END, 0, b""),
]
MANY: Said = [(FrameType.DATA, 1, b"abc")] * 40
LIVE: Said = [
    *STARTED,
    *[(FrameType.DATA, 5 + at % 2, b"live") for at in range(40)],
    (FrameType.END, 5, b""),
    (FrameType.END, 6, b""),
]
ANSWERS: dict[str, tuple[Said, dict[str, Any]]] = {
    "sandbox.info": ([], READY),
    "slot.create": ([], SLOT),
    "slot.reset": ([], RESET),
    "slot.checkpoint": ([], CHECKPOINT),
    "slot.restore": ([], {**RESET, "sessions": {"s1": {"session": "s2", "cwd": "/"}}, "workdir": "/workspace"}),
    "checkpoint.info": ([], {**CHECKPOINT, "layers": [{"layer": "1", "entries": 3, "bytes": 4096}]}),
    "slot.destroy": ([], {"killed": RECEIPT}),
    "slot.kill_all": ([], {"killed": RECEIPT}),
    "slot.processes": ([], {"processes": [PROCESS]}),
    "exec.run": ([*LIVE, *OUTPUT], EXIT),
    "session.open": ([], {"session": "x", "shell": "bash", "keeps": ["cwd"]}),
    "proc.spawn": ([], {"process": "p1", "pid": 5}),
    "proc.list": ([], {"processes": [LISTED]}),
    "proc.wait": ([], {"exit": EXIT}),
    "proc.read": (PIECE, {"offset": 0, "next_offset": 3, "end": True}),
    "proc.follow": ([*MANY, (FrameType.END, 1, b"")], {"next_offset": 3, "lost_bytes": 0}),
    "proc.write": ([], {"written": 5}),
    "proc.kill": ([], {"killed": RECEIPT}),
    "file.read": (MANY, {"size": 120, "read": 120}),
    "file.write": ([], {"written": 5, "created": True, "dirs_created": 0}),
    "file.stat": ([], FILE),
    "file.list": ([], {"entries": [FILE], "truncated": False}),
    "file.search": ([], FOUND),
    "file.glob": ([], {"paths": ["a"], "total": 1}),
    "file.get_tree": ([(FrameType.DATA, 1, TREE)], {"files": 5, "bytes": 6, "skipped": []}),
    "file.put_tree": ([], {"files": 1, "bytes": 1, "refused": []}),
    "net.connect": (CONNECTED, {}),
    "net.listen": ([(FrameType.EVENT, 0, b'{"event":"listening","address":"127.0.0.1:80"}')], {}),
    "net.accept": (CONNECTED, {}),
}


class HostileRunner:
    """One sandbox. `hostility` is how often what it says at once is changed, from 0 to 1; `frames` counts what it
    said.
    """

    def __init__(self, rng: Random, hostility: float, tasks: TaskGroup) -> None:
        self.rng, self.hostility, self.tasks = rng, hostility, tasks
        self.frames = 0
        self.refuses = False
        self.boot_id = f"boot-{rng.randrange(1 << 30)}"
        self.key = b""
        self.said: dict[int, list[tuple[int, bytes]]] = {}
        self.heard: dict[int, int] = {}
        self.last: deque[bytes] = deque(maxlen=40)
        self.stream: FdStream | None = None

    async def open(self) -> FdStream:
        """What a backend's `open` does."""
        if self.refuses:
            raise OSError("it refuses")
        ours, theirs = socket.socketpair()
        self.stream = FdStream(theirs.detach())
        self.tasks.start_soon(self._serve, self.stream)
        return FdStream(ours.detach())

    def stop(self) -> None:
        """Say nothing more."""
        self.refuses = True
        if self.stream is not None:
            self.stream.close_now()

    async def _serve(self, stream: FdStream) -> None:
        decoder = Decoder()
        with contextlib.suppress(*BROKEN):
            while True:
                for frame in decoder.feed(await stream.receive()):
                    if answer := self._answer(frame):
                        await self._say(stream, answer)
        await stream.aclose()

    async def _say(self, stream: FdStream, frames: list[bytes]) -> None:
        if self.rng.random() < self.hostility:
            frames = mutate.conversation(self.rng, frames)
        self.frames += len(frames)
        data = b"".join(frames)
        self.last.append(data)
        if self.hostility and self.rng.random() < 0.1:
            cut = self.rng.randrange(len(data) + 1)
            await stream.send(data[:cut])
            await anyio.lowlevel.checkpoint()
            data = data[cut:]
        await stream.send(data)
        if self.rng.random() < self.hostility / 10:
            stream.close_now()

    def _answer(self, frame: Frame) -> list[bytes]:
        kind, _, _, number, payload = frame
        match kind:
            case FrameType.HELLO:
                return self._welcome(json.loads(payload))
            case FrameType.PROOF:
                return [encode(FrameType.READY, payload=as_json({**READY, "boot_id": self.boot_id}))]
            case FrameType.KEEPALIVE:
                return [encode(FrameType.KEEPALIVE)]
            case FrameType.REQUEST:
                return self._carry_out(number, json.loads(payload))
            case FrameType.RESUME:
                return self._resume(number, int.from_bytes(payload, "big"))
            case FrameType.ACK:
                self.said.pop(number, None)
            case FrameType.DATA:
                self.heard[number] = int.from_bytes(payload[:8], "big") + len(payload) - 8
                return [encode_position(FrameType.CREDIT, number, self.heard[number])]
        return []

    def _welcome(self, hello: dict[str, Any]) -> list[bytes]:
        nonce = os.urandom(16)
        welcome = {"version": 1, "boot_id": self.boot_id, "nonce": nonce.hex()}
        if "claim" in hello:
            self.key = bytes.fromhex(hello["claim"])
        else:
            text = b"runner" + bytes.fromhex(hello["nonce"]) + nonce + self.boot_id.encode()
            welcome["proof"] = hmac.new(self.key, text, hashlib.sha256).hexdigest()
        said = [encode(FrameType.WELCOME, payload=as_json(welcome))]
        if "claim" in hello:
            said.append(encode(FrameType.READY, payload=as_json({**READY, "boot_id": self.boot_id})))
        return said

    def _carry_out(self, number: int, request: dict[str, Any]) -> list[bytes]:
        before, result = ANSWERS.get(request["method"], ([], {}))
        position, frames = 0, []
        for kind, channel, data in before:
            frames.append((position, encode_positioned(kind, number, channel, position, data)))
            position += len(data)
        if self.hostility and self.rng.random() < 0.03:
            answer: dict[str, Any] = {"error": {"kind": "os", "message": "no", "errno": "ENOENT", "path": "a"}}
        else:
            answer = {"result": result}
        frames.append((1 << 60, encode(FrameType.RESPONSE, number, as_json(answer))))
        self.said[number] = frames
        return [frame for _, frame in frames]

    def _resume(self, number: int, position: int) -> list[bytes]:
        if number not in self.said:
            return [encode(FrameType.RESUMED, number, bytes(9))]
        heard = self.heard.get(number, 0)
        known = encode(FrameType.RESUMED, number, b"\1" + heard.to_bytes(8, "big"))
        rest = [frame for at, frame in self.said[number] if at >= position]
        return [known, encode_position(FrameType.CREDIT, number, heard), *rest]
