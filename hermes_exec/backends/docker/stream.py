"""The byte stream of a Docker exec: a hijacked connection whose output comes in frames of 8 bytes and a payload."""

from __future__ import annotations

import struct

import anyio

from hermes_exec.aio.streams import FdStream

HEADER = struct.Struct(">BxxxI")
STDIN, STDOUT, STDERR = 0, 1, 2
FIRST = 0
"""The first byte of a runner's output: a frame is shorter than 16 MiB.

Docker reports on stdout, as text, that the program could not be started, as in a container that is ending.
"""


class DockerStream(FdStream):
    """Owns the descriptor of the connection. Reads give stdout alone; writes go to stdin as they are."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._head = b""
        self._left = 0
        self._kind = STDOUT
        self._begun = False

    def unwrap(self, data: bytes) -> bytes:
        """Output of the program alone; anyio.BrokenResourceError when Docker says that there is no such program."""
        payload = self.demultiplex(data)
        if payload and not self._begun:
            if payload[0] != FIRST:
                raise anyio.BrokenResourceError(payload.decode("utf-8", "replace").strip())
            self._begun = True
        return payload

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
