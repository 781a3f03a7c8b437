"""A sandbox with an open channel and one slot in it, for tests of backends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from hermes_exec.backends.base import Backend, LaunchSpec, Sandbox, SandboxInfo, SandboxStatus
from hermes_exec.backends.docker.backend import DockerBackend
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from hermes_exec.channel import Channel


def backend(**options: Any) -> DockerBackend:
    """A Docker backend with these options."""
    return DockerBackend(DockerConfig(**options))


def left(base: Path) -> list[str]:
    """What local sandboxes have left in the directory that theirs are made in."""
    return os.listdir(base)


async def sandboxes_of(name: str, options: Mapping[str, Any]) -> list[SandboxInfo]:
    """The sandboxes that there are, as another driver sees them."""
    asked = make_backend(name, options)
    try:
        return await asked.sandboxes()
    finally:
        await asked.aclose()


async def until_state(sandbox: Sandbox, state: str, patience_s: float = 60.0) -> SandboxStatus:
    """Wait until the sandbox is in a state, as seen from outside."""
    for _ in range(round(patience_s / 0.02)):
        status = await sandbox.status()
        if status.state == state:
            return status
        await anyio.sleep(0.02)
    raise AssertionError(f"not {state} within {patience_s:g} s")


@dataclass
class Ran:
    """What a command in the sandbox did."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass
class OpenSandbox:
    """A launched sandbox, its channel, and what slot.create said."""

    sandbox: Sandbox
    channel: Channel
    slot: dict[str, Any]

    async def run(self, *argv: str, user: str | None = None) -> Ran:
        """Run a program in the slot."""
        params = {
            "slot": "s1",
            "argv": list(argv),
            "user": user,
            "stdin": False,
            "timeout_s": 20,
            "output_limit_bytes": 1 << 20,
            "merge_stderr": False,
            "stream": False,
        }
        async with self.channel.converse("exec.run", params) as conversation:
            result, pieces = await conversation.collect()
        return Ran(result["exit_code"], b"".join(pieces.get(1, [])), b"".join(pieces.get(2, [])))


@asynccontextmanager
async def sandbox(
    backend: Backend, spec: LaunchSpec, run_id: str = "backend-tests", level: str | None = None
) -> AsyncIterator[OpenSandbox]:
    """Launch, open, make a slot; everything is gone afterwards."""
    await backend.check(spec)
    sandbox = await backend.launch(spec, own_labels(run_id))
    try:
        with anyio.fail_after(30):
            channel = await Channel.open(lambda: sandbox.open(["attach"]), lease_s=spec.lease_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run)
            slot = await channel.call(
                "slot.create",
                {
                    "slot": "s1",
                    "level": level or ("exclusive" if spec.exclusive else "auto"),
                    "floor": "none",
                    "network": spec.network,
                    "limits": {},
                    "best_effort_limits": True,
                    "env": {},
                    "readonly_paths": list(backend.readonly_paths),
                    "private_root": backend.private_root,
                    "user": sandbox.user if spec.exclusive else None,
                },
            )
            yield OpenSandbox(sandbox, channel, slot)
            await channel.aclose(shutdown=True)
    finally:
        await sandbox.destroy()
        await backend.aclose()
