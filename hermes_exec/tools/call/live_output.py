"""The output of a process, passed to a callback while a tool waits for it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio

from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.slot.process import follow

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.run import OnOutput

R = TypeVar("R")
Stream = Literal["stdout", "stderr"]
_CLOSE_S = 5.0


class LiveOutput:
    """The output of `process` from the offsets `starts` on, for `on_output`.

    Output ends before `mark`, if it is given. Without `on_output`, nothing is read.
    """

    def __init__(
        self, process: Process, on_output: OnOutput | None, starts: Mapping[Stream, int], mark: bytes = b""
    ) -> None:
        self._process, self._on_output, self._mark = process, on_output, mark
        self._offsets = dict(starts)
        """The end of the delivered output of each stream."""
        self._delivery = anyio.Lock()

    async def during(self, work: Callable[[], Awaitable[R]]) -> R:
        """Return the result of `work`, and deliver output while it runs. Errors of the callback are raised."""
        if self._on_output is None:
            return await work()
        async with PlainTaskGroup() as tasks:
            for stream in self._offsets:
                tasks.start_soon(self._follow, stream)
            result = await work()
            async with self._delivery:
                tasks.cancel_scope.cancel()
        return result

    async def finish(self, ends: Mapping[Stream, int]) -> None:
        """Deliver the rest of the output, up to the offsets `ends`."""
        if self._on_output is None:
            return
        for stream, end in ends.items():
            while (offset := self._offsets[stream]) < end:
                data, following = await self._process.output(offset, stream=stream, limit_bytes=end - offset)
                if not data:
                    break
                self._offsets[stream] = following - len(data)  # the log may have lost output
                await self._deliver(stream, data)

    async def _follow(self, stream: Stream) -> None:
        output, held = follow(self._process, stream, self._offsets[stream]), b""
        try:
            async for piece in output:
                async with self._delivery:
                    data = _before_mark(held + piece, self._mark)
                    held = (held + piece)[len(data) :]
                    if data:
                        await self._deliver(stream, data)
        except ProcessLookupError:
            return  # the waiting tool reports it
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                await output.aclose()

    async def _deliver(self, stream: Stream, data: bytes) -> None:
        assert self._on_output is not None
        self._offsets[stream] += len(data)
        result = self._on_output(stream, data)
        if inspect.isawaitable(result):
            await result


def _before_mark(data: bytes, mark: bytes) -> bytes:
    """Return the part of `data` before `mark`, or before an end of the data that may be the beginning of it."""
    if not mark:
        return data
    at = data.find(mark)
    if at >= 0:
        return data[:at]
    begun = next((n for n in range(min(len(mark) - 1, len(data)), 0, -1) if data.endswith(mark[:n])), 0)
    return data[: len(data) - begun]
