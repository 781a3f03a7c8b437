"""hermes-agent in a slot without a network: the driver's model answers its calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hermes_agent.gateway import harness
from hermes_exec import SandboxPool
from tests.support.sorting import check_sorted, sorting_model, sorting_rollout

pytestmark = pytest.mark.anyio


async def test_hermes_agent_solves_a_task() -> None:
    async with SandboxPool("local", network=False) as pool:  # its slots can read the environment of this Python
        rollout = sorting_rollout(harness("hermes-agent", "-t", "terminal,file"), path=str(Path(sys.prefix) / "bin"))
        check_sorted(await rollout.run(pool, sorting_model("terminal")))
