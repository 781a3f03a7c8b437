"""The loop with the real tools in real slots."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import anyio.to_thread
import pytest

from hermes_agent import AgentLoop, Completion, Episode, Hooks, ScriptedModel, ToolCall
from hermes_agent.models.scripted import call
from hermes_exec import SandboxPool
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import Toolbox, ToolResult
from tests.conftest import BackendCase
from tests.e2e.agent.plans import PlanModel

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


def outputs(episode: Episode) -> list[dict[str, Any]]:
    return [json.loads(message["content"]) for message in episode.messages if message["role"] == "tool"]


async def test_state_persists_between_turns(backend: BackendCase) -> None:
    plan = PlanModel({"go": [["mkdir -p d && cd d && export X=7"], ['pwd; echo "$X"'], "done"]})
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        episode = await AgentLoop(plan, Toolbox(slot)).run("go")
    assert (episode.finish, episode.trainable) == ("answered", True)
    assert outputs(episode)[1]["output"].split() == [f"{slot.workspace}/d", "7"]


async def test_calls_of_a_turn_see_each_other_in_order(backend: BackendCase) -> None:
    calls = (
        call("write_file", {"path": "a.txt", "content": "one\n"}),
        *(call("terminal", {"command": f"cd {'.' if n else '/'} && pwd"}, call_id=f"t{n}") for n in range(3)),
    )
    model = ScriptedModel([Completion("", calls), "done"])
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        episode = await AgentLoop(model, Toolbox(slot)).run("go")
        assert await slot.files.read_text("a.txt") == "one\n"
    assert [output["output"].strip() for output in outputs(episode)[1:]] == ["/", "/", "/"]


async def test_mistakes_of_the_model_are_results(backend: BackendCase) -> None:
    calls = (
        call("terminal", {}, call_id="missing"),
        call("teleport", {"x": 1}, call_id="unknown"),
        call("terminal", {"command": "exit 3"}, call_id="exit"),
    )
    model = ScriptedModel([Completion("", calls), '<tool_call>{"name": "terminal", "arg</tool_call>', "sorry"])
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        episode = await AgentLoop(model, Toolbox(slot)).run("go")
    assert (episode.finish, episode.cause) == ("answered", ErrorCause.POLICY)
    assert [record.ok for record in episode.tool_calls] == [False] * 4
    assert all(output.get("error") or output.get("exit_code") == 3 for output in outputs(episode))


async def test_slot_that_is_taken_away_ends_the_episode_unscored(backend: BackendCase) -> None:
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        toolbox = Toolbox(slot)
        await pool.release(slot)
        episode = await AgentLoop(PlanModel({"go": [["true"]]}), toolbox).run("go")
    assert (episode.finish, episode.trainable) == ("infra", False)
    assert [error.kind for error in episode.errors if error.where == "infra"] == ["SlotClosed"]


async def test_blocking_pool_slot_toolbox_and_loop() -> None:
    def work() -> Episode:
        with SandboxPool("local") as pool, pool.slot() as slot:
            return AgentLoop(PlanModel({"go": [["echo hi"], "done"]}), Toolbox(slot)).run("go")

    episode = await anyio.to_thread.run_sync(work)
    assert (episode.finish, outputs(episode)[0]["output"].strip()) == ("answered", "hi")


async def test_hooks_and_budget_hold_for_the_calls_of_code() -> None:
    code = """
from hermes_tools import terminal, write_file
for command in ('echo one', 'rm -rf /', 'echo two', 'echo three'):
    print(terminal(command))
"""
    seen: list[str] = []

    def before(made: ToolCall) -> str | None:
        seen.append(made.id)
        return "not that" if made.name == "terminal" and "rm -rf" in made.arguments else None

    def after(made: ToolCall, result: ToolResult) -> ToolResult | None:
        data = {**result.data, "output": "TWO\n"}
        return replace(result, data=data) if made.name == "terminal" and "two" in made.arguments else None

    model = ScriptedModel([Completion("", (call("execute_code", {"code": code}),)), "done"])
    async with SandboxPool("local") as pool, pool.slot() as slot:
        toolbox = Toolbox(slot, ["terminal", "file", "code_execution"])
        loop = AgentLoop(model, toolbox, hooks=Hooks(before_call=before, after_call=after), max_tool_calls=4)
        episode = await loop.run("go")
    (told,) = outputs(episode)
    lines = [ast.literal_eval(line) for line in told["output"].splitlines()]
    assert lines[0]["output"] == "one\n"
    assert (lines[1]["error"], lines[1]["error_kind"]) == ("not that", "blocked")
    assert lines[2]["output"] == "TWO\n"
    assert lines[3]["error_kind"] == "no_calls_left"
    assert seen[1:] == ["code_1", "code_2", "code_3"]
    assert told["tool_calls_made"] == 4
