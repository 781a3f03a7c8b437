"""The receiving side of a slot's conversation, as an anyio byte stream."""

from __future__ import annotations

from typing import Any, NoReturn

import anyio
from anyio.abc import ByteReceiveStream

from hermes_exec.channel import Conversation, Data, End, RemoteError
from hermes_exec.slot.scope import TRANSPORT_ERRORS, SlotScope


class Receiver(ByteReceiveStream):
    """The bytes that a conversation receives, until it or its slot ends."""

    def __init__(self, scope: SlotScope, conversation: Conversation | None = None) -> None:
        self._scope, self._conversation = scope, conversation
        self._rest = b""
        self._ended = self._closed = self._busy = False

    def _begin(self) -> Conversation:
        """Begin the conversation at the first `receive`, if the constructor got none."""
        raise NotImplementedError

    def _end(self, result: dict[str, Any]) -> None:
        """Keep the fields of the final answer."""

    async def _refuse(self, error: RemoteError) -> NoReturn:
        """Raise the caller's exception for an error of the runner."""
        await self._scope.fail(error)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes. Raises anyio.EndOfStream when the other side has ended."""
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
            self._scope.check()
            self._conversation = conversation = self._conversation or self._begin()
            self._scope.watch(conversation)
            try:
                while (item := await conversation.receive()) is not None:
                    if type(item) is Data and item.data:
                        return item.data
                    if type(item) is End:
                        break
                else:
                    self._end(conversation.result())
            finally:
                self._scope.unwatch(conversation)
        except RemoteError as error:
            self._ended = True
            await self._refuse(error)
        except TRANSPORT_ERRORS as error:
            await self._scope.fail(error)
        self._ended = True
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Stop reading and end the conversation. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        if self._conversation is not None:
            await self._scope.channel.finish(self._conversation)
