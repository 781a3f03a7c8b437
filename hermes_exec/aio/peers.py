"""Credentials of the process at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def has_peer_credentials() -> bool:
    """Return whether this system reports the process at the other end of a Unix socket."""
    return hasattr(socket, "SO_PEERCRED")


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and uid at the other end of a Unix socket. The pid is 0 if it is not visible from here.

    Raises:
        OSError, AttributeError: If this system does not report them (see `has_peer_credentials`).
    """
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
