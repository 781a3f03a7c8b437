"""Killing a box from outside, as an engine, an administrator or the kernel would."""

from __future__ import annotations

import os
import signal
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
