"""The record of a prompt: the fields that readers of such data sets expect, and whose fault a failure was."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_agent import AgentLoop, Completion, Episode, ModelError, ScriptedModel
from hermes_agent.models.scripted import call
from hermes_batch.dataset import Task
from hermes_batch.record import Failure, Place, Record, make_record
from hermes_exec.tools import KNOWN_TOOLS
from tests.unit.agent.toolboxes import FunctionTools, Result

pytestmark = pytest.mark.anyio
TASK = Task(index=3, line=4, prompt="go", id="x")
PLACE: Place = {"backend": "local", "image": "", "isolation": "namespaces", "sandbox": "local-1"}
FAILURE: Failure = {"turn": 1, "where": "infra", "kind": "SandboxDied", "message": "gone"}


async def tool(arguments: dict[str, Any]) -> Result:
    return Result("{}", ok=arguments["x"] == 1, error_kind=None if arguments["x"] == 1 else "exit")


async def episode(*steps: Completion | str | Exception) -> Episode:
    return await AgentLoop(ScriptedModel(steps), FunctionTools(tool), max_turns=3).run("go")


def record(of: Episode | None, **more: Any) -> Record:
    return make_record(TASK, of, model="m", toolsets=["terminal"], place=PLACE, seconds=1.23456, **more)


async def test_fields_of_the_hermes_batch_runner() -> None:
    calls = (call("terminal", {"x": 1}), call("terminal", {"x": 2}), call("ghost", {"x": 2}))
    made = record(await episode(Completion("", calls), "done"), solved=True)
    assert list(made)[:9] == [
        *("prompt_index", "conversations", "metadata", "completed", "partial", "api_calls"),
        *("toolsets_used", "tool_stats", "tool_error_counts"),
    ]
    assert (made["prompt_index"], made["completed"], made["partial"], made["api_calls"]) == (3, True, False, 2)
    assert set(made["metadata"]) == {"batch_num", "timestamp", "model"}
    assert [turn["from"] for turn in made["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    assert made["tool_stats"].keys() == made["tool_error_counts"].keys() == set(KNOWN_TOOLS)
    assert made["tool_stats"]["terminal"] == {"count": 2, "success": 1, "failure": 1}
    assert made["tool_stats"]["write_file"] == {"count": 0, "success": 0, "failure": 0}
    assert made["tool_error_counts"]["terminal"] == 1
    assert made["unknown_tools"] == ["ghost"]
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("answered", "policy", True, True)
    assert made["seconds"] == 1.235


async def test_infra_failure_is_never_a_score() -> None:
    made = record(await episode("done"), solved=False, failure=FAILURE, cause="infra")
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("infra", "infra", False, None)
    assert (made["completed"], made["partial"]) == (False, True)
    assert made["errors"] == [FAILURE]


async def test_model_error_is_never_a_score() -> None:
    made = record(await episode(ModelError("down")), solved=True)
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == (
        "model_error",
        "provider",
        False,
        None,
    )
    assert [error["kind"] for error in made["errors"]] == ["ModelError"]


async def test_prompt_that_never_had_a_slot() -> None:
    made = record(None, failure=FAILURE, cause="provider")
    assert (made["finish"], made["cause"], made["trainable"], made["api_calls"]) == ("infra", "provider", False, 0)
    assert [turn["from"] for turn in made["conversations"]] == ["system", "human"]


async def test_every_record_has_the_same_fields() -> None:
    full, empty = record(await episode("done"), solved=True), record(None, failure=FAILURE)
    assert list(full) == list(empty)
    assert {name: type(value) for name, value in full.items() if name != "solved"} == {
        name: type(value) for name, value in empty.items() if name != "solved"
    }
