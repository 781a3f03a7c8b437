"""Reads the body of an answer: JSON as a whole, or a stream of events that an Assembler joins."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

import anyio

from hermes_agent.models.events import EventDecoder

if TYPE_CHECKING:
    from hermes_agent.models.http.client import HTTPAnswer

_LARGEST_ANSWER = 256 << 20
_EXCERPT_BYTES = 200
_DONE = "[DONE]"
_REST_S, _USAGE_S = 0.25, 5.0
_COLLECT_S = 0.1


class Assembler(Protocol):
    """Assembles an answer from the events of a stream."""

    @property
    def finished(self) -> bool:
        """Whether the answer seems complete. Facts about it may follow."""
        ...

    def add(self, event: object) -> None:
        """Add the next event. Raise BadAnswer if it is an error."""
        ...

    def is_progress(self, event: object) -> bool:
        """Return whether an event brings a piece of the answer, and does not only keep the connection alive."""
        ...

    def answer(self, *, ended: bool) -> object:
        """Return the whole answer. `ended` means that the stream was closed with `[DONE]`. Raise BadAnswer if it is
        incomplete.
        """
        ...


class BadAnswer(Exception):
    """Raised by the reader of an unusable answer. The request is sent again."""


class Silence:
    """The limit on the time without a piece of an answer: the deadline of a scope, which each piece puts off.

    Not the obvious code: see docs/why-not-obvious.md ("One timer for a stream").
    """

    def __init__(self, scope: anyio.CancelScope, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._scope, self._next = scope, 0.0

    @property
    def is_due(self) -> bool:
        """Whether the deadline is so old that the next piece puts it off."""
        return time.monotonic() >= self._next

    def end(self) -> None:
        """Put the deadline off, because a piece of the answer came."""
        self._scope.deadline = anyio.current_time() + self.timeout_s
        self._next = time.monotonic() + self.timeout_s / 20


async def read_body(answer: HTTPAnswer, silence: Silence, assemble: Callable[[], Assembler] | None) -> object:
    """Return the decoded JSON of an answer, or the answer that the Assembler joins from a stream of events.

    Raises:
        BadAnswer: If it is no JSON, or not as the Assembler accepts it.
        BadBody: If it cannot be decompressed, or is too large.
    """
    streams = assemble is not None and answer.headers.get("content-type", "").startswith("text/event-stream")
    async with aclosing(answer.pieces(_LARGEST_ANSWER)) as pieces:
        if assemble is None or not streams:
            return _json(await _join(pieces, silence))
        # Not the obvious code: see docs/why-not-obvious.md ("Pieces of a stream are read together")
        answer.collect(min(_COLLECT_S, silence.timeout_s / 20))
        return await _assemble(pieces, assemble(), silence)


async def _join(pieces: AsyncIterator[bytes], silence: Silence) -> bytes:
    """Return the whole answer. Some servers write blank lines until they begin it."""
    content = []
    async for piece in pieces:
        if silence.is_due and not piece.isspace():
            silence.end()
        content.append(piece)
    return b"".join(content)


async def _assemble(pieces: AsyncIterator[bytes], answer: Assembler, silence: Silence) -> object:
    """Return the answer of a stream.

    It reads on for a moment after the end: a connection that was read to its end can be reused, but some servers leave
    a stream open.
    """
    from hermes_agent.models.http.client import HTTP_ERRORS

    decoder, ended, wrong = EventDecoder(), False, None

    def add_events(events: Iterable[str]) -> bool:
        for data in events:
            if data == _DONE:
                return True
            answer.add(event := _json(data))
            if silence.is_due and answer.is_progress(event):
                silence.end()
        return False

    # Reading ends by cancellation, so that the client's generators end in order and not at garbage collection.
    with anyio.CancelScope() as rest:
        try:
            async for piece in pieces:
                if ended or wrong is not None:
                    continue
                try:
                    ended = add_events(decoder.feed(piece))
                except BadAnswer as error:
                    wrong = error
                    rest.cancel()
                if ended or answer.finished:
                    rest.deadline = min(rest.deadline, anyio.current_time() + (_REST_S if ended else _USAGE_S))
        except HTTP_ERRORS:
            # Some servers and proxies break the connection instead of closing it in order.
            if not (ended or answer.finished):
                raise
    if wrong is not None:
        raise wrong
    with suppress(BadAnswer) if answer.finished else nullcontext():
        ended = ended or add_events(decoder.finish())
    return answer.answer(ended=ended)


def _json(content: bytes | str) -> object:
    """Return the decoded JSON. Raise BadAnswer if it is invalid."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        head = content[:_EXCERPT_BYTES]
        begin = " ".join((head.decode("utf-8", "replace") if isinstance(head, bytes) else head).split())
        raise BadAnswer(f"it is not JSON: {begin or 'it is empty'}") from error
