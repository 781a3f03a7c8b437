"""Faults from outside a sandbox: its end and broken streams, as an engine or a network would cause them."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from hermes_exec.backends.capabilities import HasBaseDirectory, Signalable

if TYPE_CHECKING:
    from hermes_exec import SandboxPool, Slot


def signalable(pool: SandboxPool, slot: Slot) -> Signalable | None:
    """Return the sandbox of this slot if signals can be sent to it from outside."""
    assert pool._running is not None  # a slot of it is held
    for sandbox in pool._running.fleet.sandboxes.values():
        if sandbox.id == slot.sandbox and isinstance(sandbox.handle, Signalable):
            return sandbox.handle
    return None


def disk_here(pool: SandboxPool) -> bool:
    """Return whether sandboxes keep their files on this host, in the directory of the option `base_dir`."""
    assert pool._running is not None  # it is open
    return any(
        isinstance(sandbox.template.backend, HasBaseDirectory) for sandbox in pool._running.fleet.sandboxes.values()
    )


def open_sockets() -> set[tuple[int, str]]:
    """Return the open sockets of this process by descriptor and identity. Without /proc there are none."""
    sockets = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            sockets.add((int(name), target))
    return sockets


def break_sockets(sockets: set[tuple[int, str]]) -> int:
    """Shut down both directions of these connections, as a lost network would. Return their number."""
    broken = 0
    for descriptor, _ in sockets:
        # It may not be connected, or another thread has closed it meanwhile.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
            if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                one.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken
