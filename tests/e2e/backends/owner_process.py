"""A program: launches a sandbox with a short lease, says which on stdout, and waits to be killed."""

from __future__ import annotations

import json
import sys

import anyio

from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from hermes_exec.channel import Channel


async def main(name: str, options: dict[str, object], run_id: str, image: str | None, lease_s: float) -> None:
    """Launch, open the channel, and never come back."""
    backend = make_backend(name, options)
    sandbox = await backend.launch(LaunchSpec(image=image, lease_s=lease_s), own_labels(run_id))
    channel = await Channel.open(lambda: sandbox.open(["attach"]), lease_s=lease_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4] or None, float(sys.argv[5]))
