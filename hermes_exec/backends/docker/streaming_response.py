"""An answer of the engine that comes in parts, and can be hung up on from another thread."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

CURRENT_RESPONSE: ContextVar[StreamingResponse | None] = ContextVar("CURRENT_RESPONSE", default=None)
"""What is told of answers that come to this thread."""


class StreamingResponse:
    """Holds the connection of one answer while it comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._hung_up = False

    def attach(self, response: requests.Response) -> None:
        """It begins to come: nothing of its content was read yet."""
        with self._lock, contextlib.suppress(OSError, ValueError, AttributeError):  # one without content has no socket
            self._connection = socket.socket(fileno=os.dup(response.raw.fileno()))
            self._shut()

    def detach(self) -> None:
        """All of it was read: its connection may be another answer's now."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def hang_up(self) -> None:
        """Nobody wants it any more: its reader meets the end at once, and the engine gives up what it does for it."""
        with self._lock:
            self._hung_up = True
            self._shut()

    def _shut(self) -> None:
        if self._hung_up and self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
