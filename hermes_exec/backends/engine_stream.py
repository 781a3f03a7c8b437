"""A byte stream through an engine's own exec, which frames the output of the program."""

from __future__ import annotations

import anyio

from hermes_exec.aio.streams import FdStream

FIRST = 0
"""First byte of a runner's output, because a frame is shorter than 16 MiB.

If the program could not be started, as in a container that is ending, engines report this on stdout as text.
"""


class EngineStream(FdStream):
    """A stream that owns the descriptor of the connection. With `frames`, the program is the runner."""

    def __init__(self, fd: int, *, frames: bool = True) -> None:
        super().__init__(fd)
        self._begun = not frames

    def unwrap(self, data: bytes) -> bytes:
        """Return the program's output alone.

        Raises:
            anyio.BrokenResourceError: If the engine reports that it could not start the program.
        """
        payload = self.demultiplex(data)
        if payload and not self._begun:
            if payload[0] != FIRST:
                raise anyio.BrokenResourceError(payload.decode("utf-8", "replace").strip())
            self._begun = True
        return payload

    def demultiplex(self, data: bytes) -> bytes:
        """Return the program's standard output in bytes of the engine."""
        raise NotImplementedError
