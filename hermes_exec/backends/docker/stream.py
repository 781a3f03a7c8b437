"""The byte stream of a Docker exec: a hijacked connection whose output has frames with 8 bytes of header."""

from __future__ import annotations

import struct

import anyio

from hermes_exec.backends.engine_stream import EngineStream

HEADER = struct.Struct(">BxxxI")
STDIN, STDOUT, STDERR = 0, 1, 2


class DockerStream(EngineStream):
    """A stream whose reads return stdout alone. Writes go to stdin unchanged."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._head = b""
        self._left = 0
        self._kind = STDOUT

    def demultiplex(self, data: bytes) -> bytes:
        """Remove Docker's frame headers. The rest of a frame is tracked as a count and never buffered."""
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
