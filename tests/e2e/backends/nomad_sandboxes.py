"""What the tests of sandboxes that are jobs of Nomad share."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import anyio


def config_of(options: dict[str, Any]) -> dict[str, Any]:
    """What of a pool's options is the backend's."""
    return {name: value for name, value in options.items() if name != "slot_root"}


async def together(*calls: Any) -> list[Any]:
    """The results of calls that are made at the same time."""
    results: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        results[index] = await calls[index]

    async with anyio.create_task_group() as tasks:
        for index in range(len(calls)):
            tasks.start_soon(one, index)
    return results


def cli(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_exec.cli.main", *words]
    env = {**os.environ, **(environ or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=env)
