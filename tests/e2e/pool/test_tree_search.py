"""The tree search of the examples: each node is a checkpoint, to which any slot of the sandbox returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from examples.tree_search import count_failures, main, search
from hermes_exec import SandboxPool, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
WORKERS = 3


async def read_sources(slot: Slot, modules: list[str]) -> dict[str, str]:
    return {module: await slot.files.read_text(f"{module}.py") for module in modules}


async def test_small_tree_restores_each_node_in_any_order(
    anyio_backend: str, docker_image: Callable[[str], str]
) -> None:
    options: dict[str, Any] = {"network": False, "slots_per_sandbox": WORKERS, "max_sandboxes": 1}
    async with SandboxPool("docker", image=docker_image("debian"), **options) as pool, pool.slots(WORKERS) as slots:
        result = await search(slots, most_nodes=12)
        assert [node.number for node in result.nodes] == list(range(12))
        assert len(result.restores_s) == len(result.checkpoints_s) == 11
        assert pool.stats().checkpoints == 12
        root, *others = result.nodes
        assert root.failures == {"bowling": 1, "change": 2, "intervals": 4, "roman": 5}
        assert all(node.edits and node.sources != root.sources for node in others)
        assert result.best.cost == min(node.cost for node in result.nodes)
        shuffled = random.Random(1).sample(result.nodes, len(result.nodes))
        for number, node in enumerate(shuffled):
            slot = slots[number % WORKERS]
            await slot.restore(node.checkpoint)
            assert await read_sources(slot, list(node.sources)) == node.sources
        assert await count_failures(slots[0], list(root.sources)) == shuffled[9].failures
        for node in result.nodes:
            await node.checkpoint.drop()
        assert pool.stats().checkpoints == 0


@pytest.mark.whole
async def test_search_repairs_the_repository(anyio_backend: str, docker_image: Callable[[str], str]) -> None:
    assert await main(docker_image("debian"), most_nodes=200, workers=4) == 0
