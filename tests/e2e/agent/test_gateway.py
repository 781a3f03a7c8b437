"""A gateway by hand: its address and key, slots async and blocking, a reset and the end of the driver during a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Completion, Message, ScriptedModel
from hermes_agent.gateway import ModelGateway
from hermes_exec import SandboxPool
from hermes_exec.errors import ConfigError, SlotClosed
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
HARNESS = Path(__file__).with_name("harness.py").read_text()
ROOT = Path(__file__).resolve().parents[3]
WORK = ["python3", "-c", HARNESS, "go"]
ASK = "import sys; from urllib.request import *; urlopen(Request(sys.argv[1], b'{}', {'authorization': sys.argv[2]}))"


class SlowModel:
    """A model that never answers, and notes what is under way."""

    model = "slow"

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.ended = anyio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()
        raise AssertionError("unreachable")


@pytest.mark.loops
async def test_gateway_serves_a_program_by_hand() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        async with ModelGateway(slot, ScriptedModel(["Done."])) as gateway:
            result = await slot.run(WORK, env=gateway.env)
            assert (result.exit_code, result.output) == (0, "Done.\n")
            assert [node.completion.content for node in gateway.captured.nodes] == ["Done."]
        after = await slot.run(WORK, env=gateway.env)
        assert "Connection refused" in after.output
        assert len(gateway.captured.nodes) == 1


def test_gateway_serves_a_blocking_slot() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        with ModelGateway(slot, ScriptedModel(["Done."])) as gateway:
            assert slot.run(WORK, env=gateway.env).output == "Done.\n"
        assert "Connection refused" in slot.run(WORK, env=gateway.env).output


async def test_slot_and_context_manager_are_of_one_kind() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="use `async with"), ModelGateway(slot, ScriptedModel([])):
            pass


def test_blocking_slot_needs_a_blocking_context_manager() -> None:
    async def enter(gateway: ModelGateway) -> None:
        await gateway.__aenter__()

    with SandboxPool("local") as pool, pool.slot() as slot, pytest.raises(ConfigError, match="use `with"):
        anyio.run(enter, ModelGateway(slot, ScriptedModel([])))


async def test_gateway_is_entered_once() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        gateway = ModelGateway(slot, ScriptedModel([]))
        with pytest.raises(RuntimeError, match="enter it first"):
            _ = gateway.url
        async with gateway:
            pass
        with pytest.raises(RuntimeError, match="entered once"):
            await gateway.__aenter__()


async def test_key_of_another_slot_is_refused() -> None:
    """Without namespaces slots share the loopback of the host, where a neighbour finds the port."""
    async with SandboxPool("local", slots_per_sandbox=2) as pool, pool.slot() as one, pool.slot() as other:
        models = [ScriptedModel(["Done."]), ScriptedModel(["Done."])]
        async with ModelGateway(one, models[0]) as first, ModelGateway(other, models[1]) as second:
            assert first.key != second.key
            for slot, url, key in ((one, first.url, second.key), (one, first.url, ""), (other, second.url, first.key)):
                asked = await slot.run(["python3", "-c", ASK, f"{url}/v1/chat/completions", f"Bearer {key}"])
                assert "401" in asked.output
    assert [model.requests for model in models] == [[], []]


@pytest.mark.loops
async def test_reset_during_a_call_cancels_the_sample() -> None:
    model = SlowModel()
    async with SandboxPool("local", slots_per_sandbox=1) as pool, pool.slot() as slot:
        async with ModelGateway(slot, model) as gateway, anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(SlotClosed):
                    await slot.run(WORK, env=gateway.env)

            tasks.start_soon(run)
            await model.begun.wait()
            await slot.reset()
        assert model.ended.is_set()
        async with ModelGateway(slot, ScriptedModel(["Done."])) as gateway:  # the slot serves again
            assert (await slot.run(WORK, env=gateway.env)).output == "Done.\n"


async def test_leaving_the_gateway_cancels_samples_and_ends_calls() -> None:
    model = SlowModel()
    async with SandboxPool("local") as pool, pool.slot() as slot:
        async with ModelGateway(slot, model) as gateway:
            process = await slot.spawn(WORK, env=gateway.env)
            await model.begun.wait()
        assert model.ended.is_set()
        assert (await process.wait()).exit_code == 1


DRIVER = """
import anyio, sys
from hermes_agent import Rollout
from hermes_exec import SandboxPool
from tests.e2e.agent.test_gateway import SlowModel, WORK

class Model(SlowModel):
    async def complete(self, *a, **k):
        print("asked", flush=True)
        return await super().complete(*a, **k)

async def main():
    async with SandboxPool("local") as pool:
        await Rollout(messages="go", program=[*WORK, sys.argv[1]]).run(pool, Model())

anyio.run(main)
"""


async def test_program_ends_with_its_driver() -> None:
    """The driver is killed while its sampler works: nothing of the program is left."""
    word = f"marker-{os.getpid()}"
    async with await anyio.open_process([sys.executable, "-c", DRIVER, word], stderr=None, cwd=ROOT) as driver:
        assert driver.stdout is not None
        assert (await driver.stdout.receive()).startswith(b"asked")
        assert processes_with(word, but=driver.pid)
        driver.kill()
    await until(lambda: not processes_with(word, but=driver.pid))


def processes_with(word: str, but: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command and int(process.name) != but:
            found.append(int(process.name))
    return found
