"""The context of a check: its own slot, facts of the backend, programs for every image, and a factory for pools."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_exec.errors import ConfigError, LaunchError
from hermes_exec.results import RunResult
from hermes_exec.testing.conformance import outside
from hermes_exec.testing.conformance.facts import HELPER, Facts, put_helper
from hermes_exec.testing.conformance.registry import NotGiven, PoolFactory

if TYPE_CHECKING:
    from hermes_exec import Process, SandboxPool, Slot
    from hermes_exec.config import Limits


@dataclass(slots=True)
class Context:
    """The context of one check.

    `slot` belongs to this check alone and is absent for `own_pool` checks. `directory` is a new directory
    of the driver.
    """

    factory: PoolFactory
    facts: Facts
    directory: Path
    acquired: Slot | None = None
    mark: str = field(default_factory=lambda: f"conformance-{secrets.token_hex(8)}")

    @property
    def slot(self) -> Slot:
        """The slot of this check."""
        if self.acquired is None:
            raise RuntimeError("an own_pool check makes its slots itself")
        return self.acquired

    async def argv(self, name: str, *words: object, slot: Slot | None = None) -> list[str]:
        """Return the argv of an applet (runner/cmd/applets). Every image can run applets."""
        slot = slot or self.slot
        if self.facts.platform is None:
            raise NotGiven(self.facts.missing["helper"])
        path = f"{slot.workspace}/{HELPER}"
        if not await slot.files.exists(path):
            await put_helper(slot, self.facts.platform)
        return [path, name, *map(str, words)]

    async def applet(self, name: str, *words: object, slot: Slot | None = None, **run: Any) -> RunResult:
        """Run an applet to its end. Keywords are passed to `slot.run`."""
        slot = slot or self.slot
        return await slot.run(await self.argv(name, *words, slot=slot), **run)

    async def background(self, name: str, *words: object, slot: Slot | None = None, **spawn: Any) -> Process:
        """Start an applet in the background. Keywords are passed to `slot.spawn`."""
        slot = slot or self.slot
        return await slot.spawn(await self.argv(name, *words, slot=slot), **spawn)

    @asynccontextmanager
    async def pool(self, **overrides: Any) -> AsyncIterator[SandboxPool]:
        """Open a pool for this check, of at most one sandbox by default.

        Raises:
            NotGiven: If this backend cannot provide the overrides.
        """
        async with self.factory(**{"max_sandboxes": 1, **overrides}) as pool:
            yield pool

    @asynccontextmanager
    async def slot_with_limits(self, what: str, limits: Limits) -> AsyncIterator[Slot]:
        """Acquire a slot under limits, in a pool of its own.

        The limits are set on the only slot of a sandbox, on the sandbox where the backend refuses that, or else on one
        of two slots.

        Raises:
            NotGiven: If this backend refuses both.
        """
        refusals = []
        for keyword, slots in (("slot_limits", 1), ("limits", 1), ("slot_limits", 2)):
            async with AsyncExitStack() as stack:
                try:
                    pool = self.factory(max_sandboxes=1, slots_per_sandbox=slots, **{keyword: limits})
                    await stack.enter_async_context(pool)
                    slot = await stack.enter_async_context(pool.slot(timeout_s=60))
                except (LaunchError, ConfigError) as error:
                    if error.retryable:
                        raise
                    refusals.append(f"{keyword}: {error}")
                    continue
                yield slot
                return
        raise NotGiven(f"{what} is refused here: " + "; ".join(refusals))

    async def expect_none_left(self, within_s: float = 10.0) -> None:
        """Assert that no process with this check's mark is alive.

        Processes are counted outside the sandbox where the host can see them.

        Raises:
            AssertionError: If a process is alive.
        """
        if "outside-view" not in self.facts.missing:
            left = await outside.wait_until_gone(self.mark, within_s)
            alive = sorted(set(left) - set(outside.zombies_of(left)))
            outside.end(alive)
            if alive:
                raise AssertionError(f"{len(alive)} processes are left, seen from outside the sandbox")
        elif self.acquired is not None:
            left = [p.pid for p in await self.slot.processes() if any(self.mark in word for word in p.argv)]
            if left:
                raise AssertionError(f"{len(left)} processes are left, seen inside the sandbox")

    async def expect_alive(self, count: int, within_s: float = 30.0) -> None:
        """Assert that `count` processes with this check's mark are alive.

        Without this, counting no processes later would prove nothing.

        Raises:
            AssertionError: If there are fewer.
        """
        if "outside-view" in self.facts.missing:
            return
        pids = await outside.wait_for_processes(self.mark, count, within_s)
        if len(pids) < count:
            raise AssertionError(f"{len(pids)} marked processes were seen before the kill, expected {count}")
