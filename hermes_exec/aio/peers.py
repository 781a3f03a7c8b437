"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def has_peer_credentials() -> bool:
    """Whether this system says who is at the other end of a Unix socket."""
    return hasattr(socket, "SO_PEERCRED")


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a Unix socket; the process is 0 where it cannot be seen from here.

    Raises:
        OSError, AttributeError: this system does not tell (see `has_peer_credentials`).
    """
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
