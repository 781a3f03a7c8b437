"""Looks into slots that pools of other processes on this host lend; the other end of `hermes_exec.pool.observe`."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_exec.errors import ExecError, SlotClosed
from hermes_exec.pool.observe import SUFFIX, listens
from hermes_exec.pool.private_directory import directory, is_private

ANSWER_S = 5.0
LONGEST_LINE = 8 << 20
GONE = (
    OSError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.DelimiterNotFound,
    ValueError,
)


class Driver:
    """A connection to a pool that lends slots."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Ask something and return the answer.

        Raises:
            SlotClosed: the slot is no longer lent, or the pool is gone.
            ExecError: what the pool says went wrong.
        """
        try:
            with anyio.fail_after(ANSWER_S):
                await self._stream.send(json.dumps({"do": do, **more}).encode() + b"\n")
                answer = await self._line()
        except TimeoutError:
            raise ExecError(f"the process that holds the slot does not answer within {ANSWER_S:g} s") from None
        return answer

    async def view(self, slot: str) -> AsyncIterator[dict[str, Any]]:
        """What the slot's commands print, event by event; nothing else can be asked on this connection afterwards."""
        await self._stream.send(json.dumps({"do": "view", "slot": slot}).encode() + b"\n")
        while True:
            yield await self._line()

    async def _line(self) -> dict[str, Any]:
        try:
            answer = json.loads(await self._lines.receive_until(b"\n", LONGEST_LINE))
        except GONE:
            raise SlotClosed("the process that held the slot is gone") from None
        if not isinstance(answer, dict):
            raise ExecError("the process that holds the slot answers something else than it was asked")
        if "error" in answer:
            raise (SlotClosed if answer.get("kind") == "SlotClosed" else ExecError)(str(answer["error"]))
        return answer


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator[Driver]:
    """Connect to the pool behind a socket. OSError when that is gone."""
    async with await anyio.connect_unix(path) as stream:
        yield Driver(stream)


def sockets() -> Iterator[Path]:
    """The sockets of pools that this user may look into; root may look into all."""
    users = [os.geteuid()]
    if not users[0]:
        names = directory().parent.glob(directory(0).name.removesuffix("0") + "*")
        users = sorted(int(uid) for uid in (name.suffix[1:] for name in names) if uid.isdecimal())
    for uid in users:
        if is_private(directory(uid), uid):
            yield from sorted(directory(uid).glob(f"*{SUFFIX}"))


async def lent_slots() -> list[tuple[Path, dict[str, Any]]]:
    """The slots that pools on this host lend, each with the socket of its pool; a pool that is silent is left out."""
    answers: dict[Path, dict[str, Any]] = {}

    async def ask(path: Path) -> None:
        if not listens(path):
            return
        try:
            async with connect(path) as driver:
                answers[path] = await driver.ask("slots")
        except (OSError, ExecError):
            return

    paths = list(sockets())
    # All at once: those that are silent are waited for together.
    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(ask, path)
    return [(path, slot) for path in paths for slot in answers.get(path, {}).get("slots", ()) if isinstance(slot, dict)]
