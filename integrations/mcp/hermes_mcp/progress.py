"""Progress notifications from the output of a tool."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from hermes_exec.aio.tasks import PlainTaskGroup

Report = Callable[[float, float | None, str | None], Awaitable[None]]
INTERVAL_S = 0.1
MESSAGE_CHARS = 1_000


class OutputProgress:
    """Reports the number of bytes that a tool has printed, and its new text as the message.

    It reports ten times a second at most. Of a longer text it reports the end. A slow client does not slow the tool.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._decoders = {name: getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._bytes = 0
        self._text = ""
        self._news = anyio.Event()

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Take a piece of output."""
        self._bytes += len(data)
        self._text = (self._text + self._decoders[stream].decode(data))[-MESSAGE_CHARS:]
        self._news.set()

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Report during the block."""
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(self._report_news)
            yield
            tasks.cancel_scope.cancel()

    async def _report_news(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            text, self._text = self._text, ""
            await self._report(self._bytes, None, text)
            await anyio.sleep(INTERVAL_S)
