"""The byte stream of a Docker exec: a hijacked connection whose output comes in frames of 8 bytes and a payload."""

from __future__ import annotations

import struct

import anyio

from hermes_exec.backends.engine_stream import EngineStream

HEADER = struct.Struct(">BxxxI")
STDIN, STDOUT, STDERR = 0, 1, 2


class DockerStream(EngineStream):
    """Reads give stdout alone; writes go to stdin as they are."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._head = b""
        self._left = 0
        self._kind = STDOUT

    def demultiplex(self, data: bytes) -> bytes:
        """Cut Docker's frames out of what came; what is not whole yet is kept as a count, never as bytes."""
        size = len(data)
        if self._left >= size and self._kind != STDERR:
            self._left -= size
            return data
        parts: list[memoryview] = []
        view, offset = memoryview(data), 0
        while offset < size:
            if not self._left:
                end = offset + HEADER.size - len(self._head)
                self._head += data[offset:end]
                offset = end
                if len(self._head) < HEADER.size:
                    break
                self._kind, self._left = HEADER.unpack(self._head)
                self._head = b""
                if self._kind > STDERR:
                    raise anyio.BrokenResourceError
                continue
            end = min(offset + self._left, size)
            if self._kind != STDERR:
                parts.append(view[offset:end])
            self._left -= end - offset
            offset = end
        return b"".join(parts)
