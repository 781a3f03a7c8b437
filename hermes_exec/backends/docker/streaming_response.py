"""Streaming responses of the engine, which another thread can hang up on."""

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
"""The object that tracks streaming responses in this thread."""


class StreamingResponse:
    """The connection of one streaming response, until it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._hung_up = False

    def attach(self, response: requests.Response) -> None:
        """Take over a response whose content has not been read yet."""
        with self._lock, contextlib.suppress(OSError, ValueError, AttributeError):  # without content it has no socket
            self._connection = socket.socket(fileno=os.dup(response.raw.fileno()))
            self._shut()

    def detach(self) -> None:
        """Release a response that was read. Its connection may carry another one now."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def hang_up(self) -> None:
        """Cut the response off: its reader sees the end at once, and the engine abandons the work for it."""
        with self._lock:
            self._hung_up = True
            self._shut()

    def _shut(self) -> None:
        if self._hung_up and self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
