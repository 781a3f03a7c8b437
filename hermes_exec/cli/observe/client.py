"""The client of `hermes_exec.pool.observe`: access to slots that pools of other processes on this host hold."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_exec.cli.kit.output import one_line, say
from hermes_exec.cli.observe.answers import (
    AcquiredSlot,
    AcquiredSlots,
    AnswerT,
    InvalidPoolAnswer,
    Refusal,
    ViewEvent,
    read_answer,
)
from hermes_exec.errors import ExecError, SlotClosed
from hermes_exec.pool.observe import SUFFIX, listens
from hermes_exec.pool.private_directory import is_private, pool_directory

ANSWER_S = 5.0
LONGEST_LINE, LONGEST_LIST = 8 << 20, 1 << 20
MAX_POOLS = 64
"""Maximum number of sockets per user that are queried."""
GONE_ERRORS = (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead)


class PoolClient:
    """A connection to the pool of another process."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def ask(self, do: str, kind: type[AnswerT], longest: int = LONGEST_LINE, **more: object) -> AnswerT:
        """Send a request and return the answer.

        Raises:
            SlotClosed: If the slot is no longer in use, or the pool is gone.
            InvalidPoolAnswer: If the answer is invalid.
            ExecError: If the pool reports an error or is silent.
        """
        try:
            with anyio.fail_after(ANSWER_S):
                return await self._ask({"do": do, **more}, kind, longest)
        except TimeoutError:
            raise ExecError(f"the process that holds the slot does not answer within {ANSWER_S:g} s") from None

    async def _ask(self, question: dict[str, object], kind: type[AnswerT], longest: int) -> AnswerT:
        try:
            await self._stream.send(json.dumps(question).encode() + b"\n")
        except GONE_ERRORS:
            raise SlotClosed("the process that held the slot is gone") from None
        return await self._answer(kind, longest)

    async def view(self, slot: str) -> AsyncIterator[ViewEvent]:
        """Yield the output of the slot's commands, event by event. The connection accepts no requests afterwards."""
        await self._stream.send(json.dumps({"do": "view", "slot": slot}).encode() + b"\n")
        while True:
            yield await self._answer(ViewEvent, LONGEST_LINE)

    async def _answer(self, kind: type[AnswerT], longest: int) -> AnswerT:
        try:
            line = await self._lines.receive_until(b"\n", longest)
        except anyio.DelimiterNotFound:
            raise InvalidPoolAnswer(
                f"the process that holds the slot answers more than {longest >> 20} MiB at once"
            ) from None
        except GONE_ERRORS:
            raise SlotClosed("the process that held the slot is gone") from None
        answer = read_answer(line, kind)
        if isinstance(answer, Refusal):
            raise (SlotClosed if answer.kind == "SlotClosed" else ExecError)(str(answer.error)[:2000])
        return answer


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator[PoolClient]:
    """Connect to the pool behind a socket. Raises OSError if it is gone."""
    async with await anyio.connect_unix(path) as stream:
        yield PoolClient(stream)


def list_sockets() -> Iterator[Path]:
    """Yield the sockets of pools that this user may observe; for root, its own first, then all users'."""
    users = [os.geteuid()]
    if not users[0]:
        names = pool_directory().parent.glob(pool_directory(0).name.removesuffix("0") + "*")
        users = sorted({0, *(int(uid) for uid in (name.suffix[1:] for name in names) if uid.isdecimal())})
    for uid in users:
        if is_private(pool_directory(uid), uid):
            paths = sorted(
                islice((path for path in pool_directory(uid).iterdir() if _is_socket(path, uid)), MAX_POOLS + 1)
            )
            if len(paths) > MAX_POOLS:
                say(f"{pool_directory(uid)}: more than {MAX_POOLS} pools, the others are left out")
            yield from paths[:MAX_POOLS]


def _is_socket(path: Path, uid: int) -> bool:
    """Check that a path is a user's own socket: a link of another user would lead root elsewhere."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    own = stat.S_ISSOCK(facts.st_mode) and facts.st_uid == uid
    return own and path.suffix == SUFFIX and not path.name.startswith(".")


async def list_slots() -> list[tuple[Path, AcquiredSlot]]:
    """Return the slots in use on this host, each with the socket of its pool. A pool that fails is named on stderr."""
    answers: dict[Path, AcquiredSlots] = {}

    async def ask(path: Path) -> None:
        if not listens(path):
            return
        try:
            async with connect(path) as client:
                answers[path] = await client.ask("slots", AcquiredSlots, LONGEST_LIST)
        except (OSError, SlotClosed):
            return
        except ExecError as error:
            say(f"{one_line(str(path))} is left out: {error}")

    paths = list(list_sockets())
    # Concurrently, so that several silent pools cost one timeout.
    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(ask, path)
    return [(path, slot) for path in paths if path in answers for slot in answers[path].slots]
