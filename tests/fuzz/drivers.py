"""A hostile driver of a real `runner serve`: the runner must go on serving the honest one, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Self

from hermes_exec.backends import runner_binary
from hermes_exec.channel.frames import (
    Decoder,
    Frame,
    FrameType,
    encode,
    encode_message,
    encode_position,
    encode_positioned,
)
from tests.fuzz import mutate
from tests.fuzz.seeds import as_json, tree

PATIENCE_S = 20.0
MOMENT_S = 0.003
MOST_MEMORY_KB = 256 << 10
SLOT_NAME = "s0"
SLOT = {
    "slot": SLOT_NAME,
    "level": "auto",
    "floor": "none",
    "network": True,
    "limits": {},
    "best_effort_limits": True,
    "env": {},
    "readonly_paths": [],
    "private_root": True,
}
# Nothing that removes, moves or ends: what is changed of these may go anywhere that the slot lets it.
REQUESTS: tuple[tuple[str, dict[str, Any], bytes | None], ...] = (
    ("sandbox.info", {}, None),
    ("exec.run", {"shell": "echo out; echo err >&2", "timeout_s": 5, "output_limit_bytes": 100}, None),
    ("exec.run", {"argv": ["cat"], "stdin": True, "stream": True, "env": {"A": {"b64": "/w=="}}, "cwd": "."}, b"input"),
    ("session.open", {"env": {"A": "b"}}, None),
    ("exec.run", {"shell": "cd /; A=c", "session": "s1"}, None),
    ("proc.spawn", {"argv": ["true"], "pty": {"rows": 5, "cols": 5}, "tag": "t"}, None),
    ("proc.list", {}, None),
    ("proc.read", {"process": "p1", "stream": 1, "offset": -3, "limit": 10}, None),
    ("proc.follow", {"process": "p1", "stream": 1, "offset": 0}, None),
    ("proc.write", {"process": "p1"}, b"input"),
    ("slot.processes", {}, None),
    ("slot.view", {}, None),
    ("file.write", {"path": "a", "parents": True, "append": False, "mode": 420}, b"content"),
    ("file.read", {"path": "a", "offset": 0, "length": 3, "limit": 10}, None),
    ("file.stat", {"path": "a", "follow": True}, None),
    ("file.list", {"path": ".", "recursive": False, "limit": 10}, None),
    ("file.search", {"path": ".", "pattern": "c.*t", "context": 1, "limit": 5, "glob": "*"}, None),
    ("file.glob", {"path": ".", "pattern": "**/*", "limit": 5}, None),
    ("file.put_tree", {"path": "d"}, tree(tarfile.PAX_FORMAT)),
    ("file.get_tree", {"path": "d"}, None),
    ("net.connect", {"host": "127.0.0.1", "port": 1, "wait_s": 0.1}, b"x"),
    ("net.listen", {"path": "socket"}, None),
    ("net.listen", {"host": "127.0.0.1", "port": 0}, None),
    ("net.accept", {"listener": 16}, None),
)


class Runner:
    """A serving runner of its own, and the key to it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hermes-exec-fuzz-"))
        self.directory.chmod(0o711)
        self.base = self.directory / "base"
        self.key, self.boot_id = secrets.token_bytes(32), ""
        command = [str(runner_binary.path()), "serve", "--base", str(self.base), "--parent", str(os.getpid())]
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        self.ids = itertools.count(8, 8)

    def __enter__(self) -> Self:
        with self.stream() as talk:
            assert "error" not in talk.ask(next(self.ids), "slot.create", SLOT)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self) -> socket.socket:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(PATIENCE_S)
            try:
                made.connect(str(self.base / "run" / "socket"))
                return made
            except (FileNotFoundError, ConnectionRefusedError):  # it is only starting
                made.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Talk]:
        """A stream that has shaken hands."""
        with self.connect() as made:
            made.sendall(b"C")
            talk = Talk(made)
            talk.shake_hands(self)
            yield talk

    @property
    def memory_kb(self) -> int:
        """The most that it ever had resident."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
        return 0

    def log(self) -> str:
        """What it wrote of itself."""
        return (self.directory / "log").read_text(errors="replace")


class Talk:
    """Frames on a socket, one after the other."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self.decoder = Decoder()
        self.frames: list[Frame] = []

    def next(self) -> Frame:
        while not self.frames:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("the runner closed the stream")
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)

    def shake_hands(self, runner: Runner) -> None:
        nonce = secrets.token_bytes(16)
        hello: dict[str, Any] = {"versions": [1], "nonce": nonce.hex(), "lease_s": 120.0}
        hello |= {"boot_id": runner.boot_id} if runner.boot_id else {"claim": runner.key.hex()}
        self.socket.sendall(encode(FrameType.HELLO, payload=as_json(hello)))
        welcome = json.loads(self.next().payload)
        if runner.boot_id:
            text = b"driver" + nonce + bytes.fromhex(welcome["nonce"]) + runner.boot_id.encode()
            proof = hmac.new(runner.key, text, hashlib.sha256).hexdigest()
            self.socket.sendall(encode(FrameType.PROOF, payload=as_json({"proof": proof})))
        runner.boot_id = welcome["boot_id"]
        assert self.next().type == FrameType.READY

    def ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request whose answer is all that matters."""
        request = as_json({"method": method, "params": params, "window": 1 << 20})
        self.socket.sendall(encode_message(FrameType.REQUEST, number, request))
        return self.answer(number)

    def answer(self, number: int) -> dict[str, Any]:
        """The response of a conversation, which is then forgotten."""
        parts = b""
        while True:
            frame = self.next()
            if frame.type in (FrameType.DATA, FrameType.EVENT) and frame.conversation == number:
                end = int.from_bytes(frame.payload[:8], "big") + len(frame.payload) - 8
                self.socket.sendall(encode_position(FrameType.CREDIT, number, end))
            if frame.type == FrameType.RESPONSE and frame.conversation == number:
                parts += frame.payload
                if not frame.flags:
                    self.socket.sendall(encode(FrameType.ACK, number))
                    answer: dict[str, Any] = json.loads(parts)
                    return answer


def valid(rng: Random, ids: list[int]) -> list[bytes]:
    """The frames of conversations with these ids, as an honest driver may send them."""
    frames = []
    for number in ids:
        method, params, data = rng.choice(REQUESTS)
        request = as_json(
            {"method": method, "params": {"slot": SLOT_NAME, **params}, "window": rng.choice([4096, 1 << 20])}
        )
        frames.append(encode_message(FrameType.REQUEST, number, request))
        if data is not None:
            frames += [
                encode_positioned(FrameType.DATA, number, 0, at, data[at : at + 64]) for at in range(0, len(data), 64)
            ]
            frames.append(encode_positioned(FrameType.END, number, 0, len(data)))
    for number in ids:
        frames += [
            encode(FrameType.KEEPALIVE),
            encode_position(FrameType.CREDIT, number, 0),
            encode_position(FrameType.RESUME, number, 0),
            encode(FrameType.CANCEL, number),
        ]
    return frames


def hostile_stream(runner: Runner, rng: Random) -> int:
    """Some conversations, changed; then the honest driver takes them back. How many frames were sent."""
    ids = [next(runner.ids) for _ in range(rng.randint(1, 6))]
    frames = valid(rng, ids)
    for _ in range(rng.randint(1, 4)):
        frames = mutate.conversation(rng, frames)
    with runner.stream() as talk, contextlib.suppress(OSError):
        talk.socket.sendall(b"".join(frames))
        _until_quiet(talk.socket)
    filler = as_json({"method": "sandbox.info", "params": {}, "window": 4096})
    with runner.stream() as talk:
        for number in ids:
            talk.socket.sendall(encode_message(FrameType.REQUEST, number, filler) + encode(FrameType.CANCEL, number))
            talk.answer(number)
    return len(frames)


def _until_quiet(stream: socket.socket) -> None:
    stream.settimeout(MOMENT_S)
    while stream.recv(1 << 16):
        continue


def hostile_attach(runner: Runner, rng: Random) -> int:
    """An offer of a stream, and a handshake, that are not what they should be. It is never let in."""
    hello = {"versions": [1], "nonce": "00" * 16, "claim": "00" * 32, "lease_s": 60.0, "boot_id": runner.boot_id}
    frames = [
        encode(FrameType.HELLO, payload=as_json(hello)),
        encode(FrameType.PROOF, payload=as_json({"proof": "00" * 32})),
    ]
    for _ in range(rng.randint(0, 3)):
        frames = mutate.conversation(rng, frames)
    data = rng.choice([b"C", b"C", b"F", b"", rng.randbytes(1)]) + b"".join(frames)
    with runner.connect() as made, contextlib.suppress(OSError):
        if rng.random() < 0.3:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as spare:
                socket.send_fds(made, [b"F"], [spare.fileno()] * rng.randint(1, 12))
        else:
            made.sendall(data)
        made.settimeout(MOMENT_S)
        heard = b""
        while piece := made.recv(1 << 16):
            heard += piece
        assert READY_HEADER not in heard
    return len(frames)


READY_HEADER = bytes([FrameType.READY, 0, 0, 0]) + bytes(8)


def attack(runner: Runner, seed: int) -> int:
    """One hostile stream, and a look at the runner. AssertionError, OSError or EOFError when it is not as before."""
    rng = Random(seed)
    sent = hostile_attach(runner, rng) if rng.random() < 0.1 else hostile_stream(runner, rng)
    assert runner.process.poll() is None, "the runner ended"
    if seed % 50 == 0:
        with runner.stream() as talk:
            reset = talk.ask(next(runner.ids), "slot.reset", {"slot": SLOT_NAME})
            assert reset.get("result", {}).get("clean") is True, reset
            ran = talk.ask(next(runner.ids), "exec.run", {"slot": SLOT_NAME, "shell": "exit 7"})
            assert ran["result"]["exit_code"] == 7, ran
        assert runner.memory_kb < MOST_MEMORY_KB, f"{runner.memory_kb} KiB"
    assert "goroutine" not in runner.log(), "a fault inside of the runner"
    return sent
