"""The receiving side of a conversation of a slot, as a byte stream of anyio."""

from __future__ import annotations

from typing import Any, NoReturn

import anyio
from anyio.abc import ByteReceiveStream

from hermes_exec.channel import Conversation, Data, End, RemoteError
from hermes_exec.slot.scope import TRANSPORT_ERRORS, SlotScope


class Receiver(ByteReceiveStream):
    """The bytes that a conversation brings, until its end or that of the slot."""

    def __init__(self, scope: SlotScope, conversation: Conversation | None = None) -> None:
        self._scope, self._conversation = scope, conversation
        self._rest = b""
        self._ended = self._closed = self._busy = False

    def _begin(self) -> Conversation:
        """Begin the conversation, with the first `receive`, where it was not given."""
        raise NotImplementedError

    def _end(self, result: dict[str, Any]) -> None:
        """Keep what the answer has beside the bytes."""

    async def _refuse(self, error: RemoteError) -> NoReturn:
        """Raise what the caller sees of an answer that is an error."""
        await self._scope.fail(error)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The next bytes. Raises anyio.EndOfStream when the other side has ended."""
        if self._closed:
            raise anyio.ClosedResourceError
        if self._busy:
            raise anyio.BusyResourceError("receiving from")
        if max_bytes < 1:
            raise ValueError("max_bytes must be 1 or more")
        self._busy = True
        try:
            if not self._rest:
                self._rest = await self._next()
        finally:
            self._busy = False
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return piece

    async def _next(self) -> bytes:
        if self._ended:
            raise anyio.EndOfStream
        try:
            with self._scope.cancel_scope():
                self._conversation = conversation = self._conversation or self._begin()
                while (item := await conversation.receive()) is not None:
                    if type(item) is Data and item.data:
                        return item.data
                    if type(item) is End:
                        break
                else:
                    self._end(conversation.result())
        except RemoteError as error:
            self._ended = True
            await self._refuse(error)
        except TRANSPORT_ERRORS as error:
            await self._scope.fail(error)
        self._ended = True
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Stop reading, which ends the conversation. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._conversation is not None:
            await self._scope.channel.finish(self._conversation)
