"""A byte stream through an engine's own exec, in whose framing the output of the program comes."""

from __future__ import annotations

import anyio

from hermes_exec.aio.streams import FdStream

FIRST = 0
"""The first byte of a runner's output: a frame is shorter than 16 MiB.

Engines report on stdout, as text, that the program could not be started, as in a container that is ending.
"""


class EngineStream(FdStream):
    """Owns the descriptor of the connection; `frames` says that the program is the runner."""

    def __init__(self, fd: int, *, frames: bool = True) -> None:
        super().__init__(fd)
        self._begun = not frames

    def unwrap(self, data: bytes) -> bytes:
        """Output of the program alone; anyio.BrokenResourceError when the engine says that there is no such program."""
        payload = self.demultiplex(data)
        if payload and not self._begun:
            if payload[0] != FIRST:
                raise anyio.BrokenResourceError(payload.decode("utf-8", "replace").strip())
            self._begun = True
        return payload

    def demultiplex(self, data: bytes) -> bytes:
        """The program's standard output in what came of the engine."""
        raise NotImplementedError
