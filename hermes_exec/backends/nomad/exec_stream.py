"""Nomad's exec: a websocket whose messages carry the input and output of a program in a task."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from typing import Any

import anyio

from hermes_exec.aio.websocket import WebSocket
from hermes_exec.backends.engine_stream import EngineStream

MESSAGE_BYTES = 1 << 20
"""Most input in one message."""


class ExecStream(EngineStream):
    """A stream that owns the descriptor. Reads return stdout alone; writes go to stdin.

    Nomad reports `exited` for programs that still run, and code 0 for those that did not start. Its report ends the
    stream and is used for nothing else.
    """

    def __init__(self, fd: int, websocket: WebSocket, *, frames: bool = True) -> None:
        super().__init__(fd, frames=frames)
        self._websocket = websocket
        self._order = threading.Lock()
        self._held = b""
        self._over: Exception | None = None

    def send_nowait(self, data: bytes) -> None:
        """See `FdStream.send_nowait`."""
        with self._order:
            data, self._held = self._held + data, b""
            for start in range(0, len(data), MESSAGE_BYTES):
                text = base64.b64encode(data[start : start + MESSAGE_BYTES]).decode("ascii")
                super().send_nowait(self._websocket.message(f'{{"stdin":{{"data":"{text}"}}}}'))

    def queue_nowait(self, data: bytes) -> None:
        """See `FdStream.queue_nowait`."""
        with self._order:
            self._held += data

    def demultiplex(self, data: bytes) -> bytes:
        """See `EngineStream.demultiplex`.

        Raises:
            anyio.BrokenResourceError: If Nomad closes the stream, with its reason.
        """
        parts: list[bytes] = []
        try:
            for text in self._websocket.messages(b"" if self._over else data):
                parts.append(_stdout(text))  # noqa: PERF401 -- keeps the parts before an error
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            self._over = error
        if self._over is not None and not any(parts):
            raise self._over
        return b"".join(parts)

    def close_now(self) -> None:
        """See `FdStream.close_now`. Sends the end to the program, which does not notice a dropped connection."""
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), self._order:
            super().send_nowait(self._websocket.message('{"stdin":{"close":true}}'))
        super().close_now()


def _stdout(text: str) -> bytes:
    try:
        message: dict[str, Any] = json.loads(text)
        if message.get("exited"):
            raise anyio.EndOfStream
        return base64.b64decode((message.get("stdout") or {}).get("data") or "")
    except (ValueError, AttributeError, TypeError) as error:
        raise anyio.BrokenResourceError(f"Nomad sent an invalid message: {text[:200]}") from error
