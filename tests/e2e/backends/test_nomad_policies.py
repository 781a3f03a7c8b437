"""Sandboxes of Nomad with the least rights, in a namespace of their own, and on a node that is drained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from hermes_exec import Limits, SandboxPool
from hermes_exec.backends.base import ReapFilter
from hermes_exec.backends.registry import make_backend
from tests.conftest import require_engine
from tests.e2e.backends.nomad_sandboxes import config_of
from tests.support.nomad_agent import Agent, agent

pytestmark = [pytest.mark.anyio, pytest.mark.nomad]
Image = Callable[[str], str]
DOCS = Path(__file__).resolve().parents[3] / "docs" / "backends.md"
NODE = 'node { policy = "read" }'
NAMESPACE = "team-a"


def documented_policy(*further: str) -> str:
    """The policy of docs/backends.md for the namespace `team-a`, with further rights."""
    (policy,) = re.findall(r"^```hcl\n(.*?)```", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return (
        str(policy)
        .replace('"default"', f'"{NAMESPACE}"')
        .replace("]", "".join(f', "{each}"' for each in further) + "]")
    )


@pytest.fixture
def options(nomad_agent: Agent, docker_image: Image) -> Iterator[dict[str, Any]]:
    """Options of pools in a namespace of their own, with the documented policy."""
    nomad_agent.make_namespace(NAMESPACE)
    options = {"address": nomad_agent.address, "namespace": NAMESPACE, "image": docker_image("busybox")}
    yield {**options, "slot_root": "shared", "token": nomad_agent.token_with(documented_policy())}
    assert nomad_agent.jobs() == []


async def use_slot(options: dict[str, Any]) -> None:
    """Run a command in a slot, list the sandbox, and end it from outside."""
    async with SandboxPool("nomad", **options) as pool:
        async with pool.slot() as slot:
            assert (await slot.run("echo here")).stdout == "here\n"
        of_backend = {name: value for name, value in config_of(options).items() if name != "limits"}
        backend = make_backend("nomad", of_backend)
        (info,) = await backend.sandboxes()
        assert [reaped.sandbox for reaped in await backend.reap(ReapFilter(all=True))] == [info.sandbox]
        await backend.aclose()


async def test_documented_policy_suffices_in_namespace(options: dict[str, Any]) -> None:
    await use_slot(options)


async def test_documented_policy_suffices_in_namespace_of_environment(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOMAD_NAMESPACE", options.pop("namespace"))
    await use_slot(options)


async def test_documented_policy_for_limits_suffices_in_namespace(options: dict[str, Any], nomad_agent: Agent) -> None:
    token = nomad_agent.token_with(documented_policy() + NODE)
    await use_slot({**options, "token": token, "limits": Limits(cpus=1)})


@pytest.mark.singularity
async def test_documented_policy_for_apptainer_suffices_in_namespace(
    options: dict[str, Any], nomad_agent: Agent, singularity_image: Image
) -> None:
    token = nomad_agent.token_with(documented_policy("alloc-node-exec"))
    image = singularity_image("busybox")
    await use_slot({**options, "token": token, "driver": "singularity", "image": image, "slot_root": None})


@pytest.fixture
def second_node(nomad_agent: Agent) -> Iterator[Agent]:
    require_engine("nomad")
    with agent(nomad_agent.server) as made:
        yield made


@pytest.mark.parametrize("reads_nodes", [True, False])
async def test_drained_node_gets_no_new_slots(
    reads_nodes: bool, options: dict[str, Any], nomad_agent: Agent, second_node: Agent
) -> None:
    if reads_nodes:
        options["token"] = nomad_agent.token_with(documented_policy() + NODE)
    async with SandboxPool("nomad", **options, slots_per_sandbox=8, max_sandboxes=2) as pool, pool.slot() as held:
        (job,) = nomad_agent.ask("GET", f"jobs?namespace={NAMESPACE}")
        (allocation,) = nomad_agent.ask("GET", f"job/{job['ID']}/allocations?namespace={NAMESPACE}")
        node = allocation["NodeID"]
        # Without the right to read nodes, a drain is noticed at its deadline.
        drain = {"DrainSpec": {"Deadline": 3600 * 10**9 if reads_nodes else -1}}
        await to_thread.run_sync(lambda: nomad_agent.ask("PUT", f"node/{node}/drain", json=drain))
        try:
            await anyio.sleep(1.1)
            async with pool.slot(timeout_s=60) as other:
                assert other.sandbox != held.sandbox
                assert (await other.run("echo there")).stdout == "there\n"
            if reads_nodes:
                assert (await held.run("echo still here")).stdout == "still here\n"
        finally:
            eligible = {"DrainSpec": None, "MarkEligible": True}
            await to_thread.run_sync(lambda: nomad_agent.ask("PUT", f"node/{node}/drain", json=eligible))
