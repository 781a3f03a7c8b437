"""The calls of one turn run in order: none sees what a later one does, and each sees what the earlier ones did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from hermes_exec import SandboxPool
from tests.conftest import require_engine
from tests.e2e.agent.ordered_pairs import SAMPLE, TURNS, wrong_turns

pytestmark = [pytest.mark.anyio, pytest.mark.one_of(1)]
SLOTS = 8


@pytest.fixture(scope="module", params=["local", pytest.param("docker-debian", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    engine, _, image = str(request.param).partition("-")
    require_engine(engine)
    options: dict[str, Any] = {"image": docker_image(image)} if image else {}
    async with SandboxPool(engine, slots_per_sandbox=SLOTS, max_sandboxes=1, **options) as made:
        yield made


@pytest.mark.parametrize("name", SAMPLE)
async def test_calls_of_a_turn_run_in_order(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 16, SLOTS) == []


@pytest.mark.whole
@pytest.mark.parametrize("name", TURNS)
async def test_calls_of_every_turn_run_in_order(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 64, SLOTS) == []


@pytest.mark.parametrize("name", ["six appends cat", "cd terminal", "cd background", "export terminal"])
async def test_commands_of_one_shell_keep_their_order_all_at_once(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 16, SLOTS, parallel_calls="all") == []
