"""A pool whose sandboxes are hostile runners: it replaces them, and its slots work once the runners are honest."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import anyio

from hermes_exec import ExecError, SandboxPool
from tests.fuzz.episodes import Told, use
from tests.fuzz.runner import HostileRunner
from tests.support.hostile import Backend, Sandbox, registered

MUTE_S = 1.0
"""How long a sandbox lives: calls that wait for what one left out end with it."""
HANG_S = 60.0


async def pool_episode(seed: int, rounds: int = 20) -> Told:
    """Acquire and use slots of hostile sandboxes, then of honest ones, all with one pool."""
    rng, told = Random(seed), Told(seed)
    runners: list[HostileRunner] = []
    honest = False
    try:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:

                def make(_: int) -> HostileRunner:
                    runners.append(HostileRunner(rng, 0.0 if honest else rng.choice([0.01, 0.1]), tasks))
                    return runners[-1]

                async def live(sandbox: Sandbox) -> None:
                    await anyio.sleep(MUTE_S)
                    sandbox.destroy_now()

                def launched(sandbox: Sandbox) -> None:
                    if not honest:
                        tasks.start_soon(live, sandbox)

                def turn_honest() -> None:
                    nonlocal honest
                    honest = True
                    for sandbox in backend.made:
                        sandbox.destroy_now()

                backend = Backend(make, launched)
                with registered(backend):
                    await _acquire_slots(turn_honest, rng, told, rounds)
                tasks.cancel_scope.cancel()
        told.frames = sum(runner.frames for runner in runners)
        told.wrong += [f"{sandbox.id} was left" for sandbox in backend.made if not sandbox.dead]
    except TimeoutError:
        told.wrong.append(f"it did not end within {HANG_S:g} s")
    return told


async def _acquire_slots(turn_honest: Callable[[], None], rng: Random, told: Told, rounds: int) -> None:
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
        turn_honest()
        for _ in range(3):
            try:
                async with pool.slot() as slot:
                    result = await slot.run("true", timeout_s=5)
                assert result.stdout == "abc"
                return
            except ExecError:
                continue
        told.wrong.append("no slot of an honest sandbox could be acquired any more")
