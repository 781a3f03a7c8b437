"""A chat completions server that plays agents and is as unkind as it is told to be, in a thread or by `python -m`.

The prompt "episode N" begins episode N: its first turns each call `terminal` with `echo N-TURN` (or `Faults.command`),
the last one says `done N`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from anyio.from_thread import start_blocking_portal

from tests.unit.agent.endpoint import chunks_of, events

FAULTS = ("500", "cut", "reset", "HTML", "empty choices")
STREAM_FAULTS = ("stream cut", "error in stream", "garbage in stream")
ODDITIES = ("comments", "CRLF", "several lines", "no DONE", "drips")
"""How some streams are written; nothing is wrong with them."""


@dataclass(frozen=True)
class Faults:
    """`per_s` requests are let in within any second, a share of `faults` of them fails, and after `away_after` good
    answers the server is away for `away_s` seconds: it does not listen, or says 503. Without any of it, it is kind.
    """

    per_s: int | None = None
    faults: float = 0.0
    away_after: int | None = None
    away_s: float = 0.0
    away_as: Literal["closed", "503"] = "closed"
    key: str | None = None
    streams: bool = True
    turns: int = 3
    command: str = "echo {episode}-{turn}"
    seed: int = 1


@dataclass
class Log:
    """What a server saw and did. Every request is one of the others."""

    requests: int = 0
    good: int = 0
    faults: int = 0
    throttled: int = 0
    refused_keys: int = 0
    faults_by_kind: dict[str, int] = field(default_factory=dict)

    def fault(self, kind: str) -> None:
        self.faults += 1
        self.faults_by_kind[kind] = self.faults_by_kind.get(kind, 0) + 1


class FlakyServer:
    """Serves in the running event loop, from `start` to `stop`."""

    def __init__(self, how: Faults) -> None:
        self.log = Log()
        self._how = how
        self._random = Random(how.seed)
        self._let_in: deque[float] = deque()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, bool] = {}
        self._said_503_until = 0.0
        self._away: asyncio.Task[None] | None = None
        # Bound and never listening: the port stays ours while the server is away.
        self._kept = self._bound(0)
        self.port: int = self._kept.getsockname()[1]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._bound(self.port), backlog=2048)

    async def stop(self) -> None:
        if self._away is not None:
            self._away.cancel()
        self._hang_up()
        self._kept.close()

    def _bound(self, port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        return made

    def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer, busy in self._open.items():
            if busy:
                self.log.fault("away")
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = False
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                self._open[writer] = True
                self.log.requests += 1
                await self._answer(writer, headers, body)
                self._open[writer] = False
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self._open[writer]
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, headers: dict[str, str], body: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self._how.key is not None and headers.get("authorization") != f"bearer {self._how.key}":
            self.log.refused_keys += 1
            await _send(writer, 401, _error("wrong key"))
        elif now < self._said_503_until:
            self.log.fault("away")
            await _send(writer, 503, _error("sleeping"))
        elif self._is_too_soon(now):
            self.log.throttled += 1
            await _send(writer, 429, _error("slow down"), "retry-after: 1\r\n")
        elif self._random.random() < self._how.faults:
            faults = (*FAULTS, *STREAM_FAULTS) if self._streams(body) else FAULTS
            await self._fail(writer, self._random.choice(faults), body)
        else:
            self.log.good += 1
            if self._streams(body):
                await self._stream(writer, _completion(body, self._how))
            else:
                await _send(writer, 200, _completion(body, self._how))
            if self.log.good == self._how.away_after:
                self._away = asyncio.create_task(self._leave(now))

    def _is_too_soon(self, now: float) -> bool:
        if self._how.per_s is None:
            return False
        while self._let_in and self._let_in[0] <= now - 1:
            self._let_in.popleft()
        if len(self._let_in) >= self._how.per_s:
            return True
        self._let_in.append(now)
        return False

    async def _fail(self, writer: asyncio.StreamWriter, kind: str, body: bytes) -> None:
        self.log.fault(kind)
        match kind:
            case "500":
                await _send(writer, 500, _error("oh no"))
            case "HTML":
                await _send(writer, 200, b"<html><body>Please sign in</body></html>")
            case "empty choices":
                await _send(writer, 200, b'{"id": "c", "choices": []}')
            case "cut":
                await _send(writer, 200, _completion(body, self._how), cut=True)
                raise ConnectionError
            case "stream cut" | "error in stream" | "garbage in stream":
                chunks = chunks_of(json.loads(_completion(body, self._how)))[:2]  # before the reason to finish
                more = {
                    "error in stream": events([{"error": {"message": "oh no"}}]),
                    "garbage in stream": b"data: <\n\n",
                }
                await _send_events(writer, [events(chunks, done=False) + more.get(kind, b"")])
            case _:
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                writer.transport.abort()
                raise ConnectionError

    def _streams(self, body: bytes) -> bool:
        return self._how.streams and json.loads(body).get("stream") is True

    async def _stream(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        oddity = self._random.choice((*ODDITIES, ""))
        line_end = "\r\n" if oddity == "CRLF" else "\n"
        body = events(chunks_of(json.loads(answer)), done=oddity != "no DONE", line_end=line_end)
        if oddity == "comments":
            body = body.replace(b"data: ", b": OPENROUTER PROCESSING\n\ndata: ")
        if oddity == "several lines":
            body = body.replace(b', "choices"', b',\ndata: "choices"')
        size = 50 if oddity == "drips" else len(body)
        await _send_events(writer, [body[at : at + size] for at in range(0, len(body), size)])

    async def _leave(self, now: float) -> None:
        if self._how.away_as == "503":
            self._said_503_until = now + self._how.away_s
            return
        self._hang_up()
        await asyncio.sleep(self._how.away_s)
        await self.start()


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes, more: str = "", *, cut: bool = False) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + (body[: len(body) // 2] if cut else body))
    await writer.drain()


async def _send_events(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in pieces:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "code": None}}).encode()


def _completion(body: bytes, how: Faults) -> bytes:
    messages = json.loads(body)["messages"]
    episode = next(message["content"].split()[-1] for message in messages if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages)
    message: dict[str, Any] = {"role": "assistant", "content": f"done {episode}"}
    if turn < how.turns - 1:
        arguments = json.dumps({"command": how.command.format(episode=episode, turn=turn)})
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "terminal", "arguments": arguments},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if turn >= how.turns - 1 else "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(whole).encode()


@contextmanager
def flaky_endpoint(how: Faults) -> Iterator[FlakyServer]:
    """A server in a thread of its own."""
    server = FlakyServer(how)
    with start_blocking_portal("asyncio") as portal:
        portal.call(server.start)
        try:
            yield server
        finally:
            portal.call(server.stop)


async def _main(how: Faults) -> None:
    """Serve until stdin ends: the URL on the first line, at the end the log as JSON."""
    server = FlakyServer(how)
    await server.start()
    print(server.base_url, flush=True)
    await asyncio.to_thread(input_ended)
    print(json.dumps(server.log.__dict__), flush=True)
    await server.stop()


def input_ended() -> None:
    with suppress(EOFError):
        while True:
            input()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", type=json.loads, help="the fields of Faults as JSON")
    asyncio.run(_main(Faults(**parser.parse_args().how)))
