"""Agents whose model's server refuses, fails and goes away: nothing of it is to be seen in what they did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import anyio
import pytest

from hermes_agent import AgentLoop, Episode, OpenAIModel
from hermes_exec import SandboxPool, Slot
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import Toolbox
from tests.e2e.agent.flaky_endpoint import Faults, flaky_endpoint

pytestmark = pytest.mark.anyio
EPISODES, AT_ONCE, PER_S = 300, 32, 20


async def run(model: OpenAIModel, numbers: range) -> dict[int, Episode]:
    """The episodes of these numbers, 32 at a time, each in a slot."""
    left: Iterator[int] = iter(numbers)
    done: dict[int, Episode] = {}

    async def work(slot: Slot) -> None:
        for number in left:
            done[number] = await AgentLoop(model, Toolbox(slot)).run(f"episode {number}")

    async with (
        SandboxPool("local", slots_per_sandbox=AT_ONCE) as pool,
        pool.slots(AT_ONCE) as slots,
        anyio.create_task_group() as tasks,
    ):
        for slot in slots:
            tasks.start_soon(work, slot)
    await model.aclose()
    return done


@pytest.mark.slow
@pytest.mark.parametrize("away_as", ["closed", pytest.param("503", marks=pytest.mark.whole)])
async def test_episodes_end_as_on_a_kind_endpoint(away_as: Literal["closed", "503"]) -> None:
    with flaky_endpoint(Faults()) as kind:
        expected = await run(OpenAIModel("m", base_url=kind.base_url), range(EPISODES))
    how = Faults(per_s=PER_S, faults=0.05, away_after=450, away_s=4, away_as=away_as)
    with flaky_endpoint(how) as server:
        done = await run(OpenAIModel("m", base_url=server.base_url), range(EPISODES))
        log = server.log
    assert {episode.finish for episode in expected.values()} == {"answered"}
    assert [done[number].finish for number in range(EPISODES)] == ["answered"] * EPISODES
    assert [done[number].messages for number in range(EPISODES)] == [expected[n].messages for n in range(EPISODES)]
    assert log.good == 3 * EPISODES
    assert log.faults >= 0.03 * log.good, "it was unkind"
    assert log.requests <= 1.05 * (log.good + log.faults), log


async def test_a_wrong_key_stops_all() -> None:
    with flaky_endpoint(Faults(key="right")) as server:
        model = OpenAIModel("m", base_url=server.base_url, api_key="wrong")
        done = await run(model, range(AT_ONCE))
        assert server.log.requests <= AT_ONCE
    assert len(done) == AT_ONCE
    assert {(episode.finish, episode.cause, episode.turns) for episode in done.values()} == {
        ("model_error", ErrorCause.CONFIG, 0)
    }
    assert {episode.errors[0].kind for episode in done.values()} == {"AccessRefused"}
