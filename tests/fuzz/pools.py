"""A whole pool whose boxes are hostile runners: it replaces them, and lends again once they are honest."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from random import Random
from typing import ClassVar
from unittest.mock import patch

import anyio
from anyio.abc import ByteStream, TaskGroup

from hermes_exec import ExecError, SandboxPool
from hermes_exec.backends import registry
from hermes_exec.backends.base import Labels, LaunchSpec, Reaped, ReapFilter, SandboxInfo, SandboxStatus
from hermes_exec.config import BackendConfig
from tests.fuzz.episodes import Told, use
from tests.fuzz.runner import HostileRunner

MUTE_S = 1.0
"""How long a box lives: calls that wait for what one left out end with it."""
HANG_S = 60.0


class Config(BackendConfig):
    """It has no options."""

    backend: ClassVar[str] = "hostile"


class Box:
    """A sandbox whose runner is hostile."""

    user = None
    limits: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, runner: HostileRunner) -> None:
        self.id, self.runner = name, runner
        self.dead = False

    async def open(self, argv: Sequence[str]) -> ByteStream:
        return await self.runner.open()

    async def status(self) -> SandboxStatus:
        return SandboxStatus("dead" if self.dead else "alive")

    async def destroy(self) -> None:
        self.destroy_now()

    def destroy_now(self) -> None:
        self.dead = True
        self.runner.stop()

    async def live(self) -> None:
        await anyio.sleep(MUTE_S)
        self.destroy_now()


class Hostile:
    """The backend of such boxes. With `honest` set new ones do as they should."""

    name = "hostile"
    whole_box = False
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, rng: Random, tasks: TaskGroup) -> None:
        self.rng, self.tasks = rng, tasks
        self.honest = False
        self.boxes: list[Box] = []

    async def check(self, spec: LaunchSpec) -> None:
        return

    async def launch(self, spec: LaunchSpec, labels: Labels) -> Box:
        runner = HostileRunner(self.rng, 0.0 if self.honest else self.rng.choice([0.01, 0.1]), self.tasks)
        box = Box(f"box-{len(self.boxes)}", runner)
        self.boxes.append(box)
        if not self.honest:
            self.tasks.start_soon(box.live)
        return box

    async def reap(self, which: ReapFilter) -> list[Reaped]:
        return []

    async def sandboxes(self) -> list[SandboxInfo]:
        return []

    async def aclose(self) -> None:
        return


def create(config: Config) -> Hostile:
    """What a backend's module offers; replaced for each pool."""
    raise AssertionError(config)


@contextmanager
def _registered(backend: Hostile) -> Iterator[None]:
    point = EntryPoint("hostile", __name__, registry.GROUP)
    with (
        patch.object(registry, "_points", lambda: {"hostile": point}),
        patch.object(sys.modules[__name__], "create", lambda _: backend),
    ):
        yield


async def pool_episode(seed: int, rounds: int = 20) -> Told:
    """Lend and use slots of hostile boxes, then of honest ones, all with one pool."""
    rng, told = Random(seed), Told(seed)
    try:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:
                backend = Hostile(rng, tasks)
                with _registered(backend):
                    await _lend(backend, rng, told, rounds)
                tasks.cancel_scope.cancel()
        told.frames = sum(box.runner.frames for box in backend.boxes)
        told.wrong += [f"{box.id} was left" for box in backend.boxes if not box.dead]
    except TimeoutError:
        told.wrong.append(f"it did not end within {HANG_S:g} s")
    return told


async def _lend(backend: Hostile, rng: Random, told: Told, rounds: int) -> None:
    options = {"slots_per_sandbox": 2, "max_sandboxes": 2, "lease_s": 5.0, "acquire_timeout_s": 15.0}
    async with SandboxPool("hostile", **options) as pool:  # type: ignore[arg-type]

        async def hold() -> None:
            for _ in range(rounds):
                try:
                    async with pool.slot() as slot:
                        await use(slot, rng, told)
                except ExecError:
                    continue

        async with anyio.create_task_group() as holders:
            for _ in range(3):
                holders.start_soon(hold)
        backend.honest = True
        for box in backend.boxes:
            box.destroy_now()
        for _ in range(3):
            try:
                async with pool.slot() as slot:
                    result = await slot.run("true", timeout_s=5)
                assert result.stdout == "abc"
                return
            except ExecError:
                continue
        told.wrong.append("the pool did not lend an honest box's slot any more")
