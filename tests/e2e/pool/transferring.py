"""A driver that stops in the middle of a transfer: `transferring.py BACKEND OPTIONS`.

It prints the pids of both runners, and then the directory that each sandbox has on this host, if any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio import to_thread

from hermes_exec import SandboxPool
from hermes_exec.backends.capabilities import HostVisible
from hermes_exec.backends.child_sandbox import ChildSandbox
from hermes_exec.pool import transfer
from hermes_exec.pool.sandbox import PooledSandbox

AT_PIECE = 3
"""The moment at which a transfer is disturbed: the layer has about 40 pieces."""
FILL = "head -c 40000000 /dev/urandom > big; sha256sum big > sum"
Put = Callable[[PooledSandbox, str, str, str, Callable[[], Any]], Awaitable[None]]


def disturb(put: Put, act: Callable[[PooledSandbox], Awaitable[None]]) -> Put:
    """Return `put_part` that calls `act` with the target once, in the middle of the first transfer."""
    pieces = 0

    async def put_and_act(
        target: PooledSandbox, checkpoint: str, layer: str, directory: str, receive: Callable[[], Any]
    ) -> None:
        async def receive_and_act() -> bytes:
            nonlocal pieces
            piece: bytes = await receive()
            pieces += 1
            if pieces == AT_PIECE:
                await act(target)
            return piece

        await put(target, checkpoint, layer, directory, receive_and_act)

    return put_and_act


async def main(backend: str, options: str) -> None:
    """Make a checkpoint, begin a fork in another sandbox, and wait until this process is ended."""
    async with SandboxPool(backend, **ast.literal_eval(options)) as pool, pool.slots(2) as parents:
        await parents[0].run(FILL, check=True)
        checkpoint = await parents[0].checkpoint()

        async def stop(_: PooledSandbox) -> None:
            assert pool._life.running is not None
            for sandbox in pool._life.running.fleet.sandboxes.values():
                assert isinstance(sandbox.handle, HostVisible)
                directory = sandbox.handle._directory.path if isinstance(sandbox.handle, ChildSandbox) else ""
                print(await to_thread.run_sync(sandbox.handle.host_pid), directory, flush=True)
            await anyio.sleep_forever()

        transfer.put_part = disturb(transfer.put_part, stop)  # type: ignore[assignment]
        await pool.acquire(from_=checkpoint)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
