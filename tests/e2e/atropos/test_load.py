"""Many rollouts at once on Docker while sandboxes are killed: groups stay whole, and nothing of it becomes a reward."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest
from anyio import to_thread

from hermes_exec import Acquired, Died, Reset, SandboxPool
from tests.e2e.atropos.counting import CountingEnv, count
from tests.e2e.atropos.inference_server import PolicyServer, load, make_env, sampled, sequences, serving
from tests.e2e.atropos.trainer import Api, run_api

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(500)]
TURNS, GROUP_SIZE, GROUPS_AT_ONCE, SLOTS_A_SANDBOX, STEPS = 20, 8, 8, 8, 1
KILLS = 12


async def kill_sandboxes(pool: SandboxPool, killed: list[str]) -> None:
    """Kill a sandbox at work now and then: KILLS of them, as long as it is not called off."""
    chance, busy = random.Random(7), Counter[str]()
    client = docker.from_env()

    async def watch() -> None:
        async for event in pool.events():
            if isinstance(event, Acquired | Reset):
                busy[str(event.sandbox)] += 1 if isinstance(event, Acquired) else -1
            elif isinstance(event, Died):
                del busy[str(event.sandbox)]

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            while len(killed) < KILLS:
                await anyio.sleep(chance.uniform(1, 4))
                if at_work := sorted(sandbox for sandbox, held in busy.items() if held > 0):
                    sandbox = chance.choice(at_work)
                    with contextlib.suppress(docker.errors.APIError):  # the pool may have ended it meanwhile
                        await to_thread.run_sync(client.api.kill, sandbox)
                        killed.append(sandbox)
    finally:
        client.close()


async def take_batches(api: Api, groups: list[Any]) -> None:
    for _ in range(STEPS):
        groups += await to_thread.run_sync(api.batch, 400)


async def test_sandboxes_that_are_killed_cost_no_group_and_no_reward(
    tokenizer: Path, docker_image: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    groups: list[Any] = []
    killed: list[str] = []
    with run_api() as api, serving(PolicyServer(load(tokenizer), lambda prompt: count(prompt, TURNS))) as server:
        api.register(batch_size=GROUP_SIZE * GROUPS_AT_ONCE, max_token_len=30_000, num_steps=STEPS)
        env = make_env(
            CountingEnv, tokenizer, server.url, group_size=GROUP_SIZE, rollout_server_url=api.url, backend="docker",
            image=docker_image("debian"), slots_per_sandbox=SLOTS_A_SANDBOX, max_sandboxes=GROUPS_AT_ONCE,
            max_rerolls=64,
            max_token_length=30_000, total_steps=STEPS, max_batches_offpolicy=3, turns=TURNS,
        )  # fmt: skip
        env.opened = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_batches, api, groups)
            async with anyio.create_task_group() as faults:

                async def serve() -> None:
                    await env.env_manager()
                    faults.cancel_scope.cancel()

                faults.start_soon(serve)
                await env.opened.wait()
                faults.start_soon(kill_sandboxes, env.pool, killed)
    stats = env.pool.stats()
    assert killed
    assert stats.acquired == stats.released > STEPS * GROUP_SIZE * GROUPS_AT_ONCE
    assert [group["scores"] for group in groups] == [[1.0] * GROUP_SIZE] * GROUPS_AT_ONCE * STEPS
    assert set(sequences(groups)) <= set(sampled(server.log, TURNS))
    assert "dropped" not in caplog.text
