"""A crowd that has used up memory and processor time of its slot ends when it is told to, and the slot goes on."""

from __future__ import annotations

import os

import pytest

from hermes_exec import Reset
from tests.attack.arena import LONG_S, arena
from tests.attack.confined import unconfined
from tests.attack.exhaust import END_S, end_of, latencies, start
from tests.attack.levels import LEVELS
from tests.attack.table import ROWS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
(BOMB,) = (row.attack for row in ROWS if row.attack.name == "fork bomb")


def no_image() -> str:
    """Local slots have none."""
    raise AssertionError("local slots have none")


async def test_a_slot_answers_beside_its_own_fork_bomb_and_is_acquired_again() -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's slots have no cgroups")
    events: list[object] = []
    async with arena(LEVELS["namespaces"], None, no_image, LONG_S, on_event=events.append) as field:
        async with field.an_attacker():
            assert not await unconfined(field, BOMB.proof)
            process = await start(field, BOMB)
            await latencies(field, [])
            await end_of(process, END_S)
            # A result in any case. 126: it had all of its processes; it may also starve among them.
            result = await field.attacker.run(["true"], timeout_s=20)
            assert result.exit_code in (0, 126) or result.timed_out
            assert (await field.attacker.kill_all()).left == 0
            assert (await field.attacker.run(["true"], timeout_s=20)).exit_code == 0
        kinds = [type(event) for event in events]
        assert kinds.count(Reset) == 1, events
