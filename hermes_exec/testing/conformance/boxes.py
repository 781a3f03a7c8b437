"""Killing a box or breaking its streams from outside, as an engine, a network or the kernel would."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio.to_thread

if TYPE_CHECKING:
    from hermes_exec import Slot

Killer = Callable[["Slot"], Awaitable[None]]
_KILLERS: dict[str, Killer] = {}


def box_killer(backend: str) -> Callable[[Killer], Killer]:
    """Register how boxes of a backend are killed from outside; third parties do this for theirs."""

    def register(function: Killer) -> Killer:
        _KILLERS[backend] = function
        return function

    return register


def killer_for(slot: Slot) -> Killer | None:
    """How to kill the box of this slot, None when nobody knows."""
    return _KILLERS.get(slot.backend)


@box_killer("local")
async def kill_local(slot: Slot) -> None:
    """The box of a local slot is the serving runner; its id ends with its pid."""
    os.kill(int(str(slot.sandbox).rpartition("-")[2]), signal.SIGKILL)


@box_killer("docker")
async def kill_container(slot: Slot) -> None:
    """Kill the container through the engine's own interface."""

    def kill() -> None:
        import docker

        client = docker.from_env()
        try:
            client.containers.get(str(slot.sandbox)).kill()
        finally:
            client.close()

    await anyio.to_thread.run_sync(kill)


def open_sockets() -> set[tuple[int, str]]:
    """The sockets that this process has open, by descriptor and identity; none where /proc is not there."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add((int(name), target))
    return found


def break_sockets(sockets: set[tuple[int, str]]) -> int:
    """Shut the connections among these sockets down both ways, as a lost network would; how many there were."""
    broken = 0
    for descriptor, _ in sockets:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                with contextlib.suppress(OSError):  # not connected
                    one.shutdown(socket.SHUT_RDWR)
                    broken += 1
    return broken
