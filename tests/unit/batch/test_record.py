"""The record of a prompt: the fields that readers of such data sets expect, and whose fault a failure was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import (
    AgentLoop,
    CheckFailed,
    Completion,
    Episode,
    EpisodeError,
    ModelError,
    RolloutResult,
    ScriptedModel,
    Verdict,
)
from hermes_agent.models.scripted import call
from hermes_batch.dataset import Task
from hermes_batch.record import Record, make_record, screenshots_of
from hermes_batch.trajectories import Trajectories
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import KNOWN_TOOLS, ToolResult
from tests.unit.agent.toolboxes import FunctionTools, result

pytestmark = pytest.mark.anyio
TASK = Task(index=3, line=4, prompt="go", id="x")
FAILURE = EpisodeError(1, "infra", "SandboxDied", "gone")
SOLVED = Verdict(1.0, solved=True, exit_code=0, output="1 passed")


class Terminal(FunctionTools):
    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}]


async def tool(arguments: dict[str, Any]) -> ToolResult:
    return result("{}", ok=arguments["x"] == 1, error_kind=None if arguments["x"] == 1 else "exit")


async def episode(*steps: Completion | str | Exception) -> Episode:
    return await AgentLoop(ScriptedModel(steps), Terminal(tool), max_turns=3).run("go")


def record(of: Episode | None, **more: Any) -> Record:
    cause = more.pop("cause", ErrorCause.INFRA if of is None else of.cause)
    made = RolloutResult(of, cause=cause, isolation="namespaces", sandbox="local-1", seconds=1.23456, **more)
    return make_record(TASK, made, model="m", toolsets=["terminal"], backend="local", image="")


async def test_fields_of_the_hermes_batch_runner() -> None:
    called = (("terminal", 1), ("terminal", 2), ("ghost", 2), ("web_search", 2))
    calls = tuple(call(name, {"x": x}) for name, x in called)
    made = record(await episode(Completion("", calls), "done"), verdict=SOLVED)
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
    assert made["unknown_tools"] == ["ghost", "web_search"]
    assert made["check"] == {"exit_code": 0, "timed_out": False, "output": "1 passed"}
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("answered", "policy", True, True)
    assert made["seconds"] == 1.235


async def test_infra_failure_is_never_a_score() -> None:
    made = record(await episode("done"), verdict=SOLVED, error=FAILURE, cause=ErrorCause.INFRA)
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("infra", "infra", False, None)
    assert (made["completed"], made["partial"]) == (False, True)
    assert made["errors"] == [{"turn": 1, "where": "infra", "kind": "SandboxDied", "message": "gone"}]


async def test_a_check_without_a_verdict_is_told_and_not_scored() -> None:
    late = CheckFailed("the check took longer than 60 s")
    made = record(await episode("done"), error=EpisodeError(1, "infra", "CheckFailed", str(late)), exception=late)
    assert (made["finish"], made["trainable"], made["solved"]) == ("infra", False, None)
    assert made["check"] == {"exit_code": None, "timed_out": True, "output": ""}


async def test_model_error_is_never_a_score() -> None:
    made = record(await episode(ModelError("down")), verdict=SOLVED)
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == (
        "model_error",
        "provider",
        False,
        None,
    )
    assert [error["kind"] for error in made["errors"]] == ["ModelError"]


async def test_prompt_that_never_had_a_slot() -> None:
    made = record(None, error=FAILURE, cause=ErrorCause.PROVIDER)
    assert (made["finish"], made["cause"], made["trainable"], made["api_calls"]) == ("infra", "provider", False, 0)
    assert [turn["from"] for turn in made["conversations"]] == ["system", "human"]


async def test_images_of_results_are_files_beside_the_records(tmp_path: Path) -> None:
    async def picture(arguments: dict[str, Any]) -> ToolResult:
        return replace(result("{}"), images=(b"\x89PNG %d" % arguments["x"],))

    calls = Completion("", (call("terminal", {"x": 1}), call("terminal", {"x": 2})))
    seen = await AgentLoop(ScriptedModel([calls, "done"]), Terminal(picture)).run("go")
    made, images = record(seen), [image for _, image in screenshots_of(TASK, seen)]
    assert made["screenshots"] == [
        {"tool_call_id": call.call_id, "path": f"screenshots/3-{at}.png"} for at, call in enumerate(seen.tool_calls, 1)
    ]
    with Trajectories.create(tmp_path, overwrite=False) as lines:
        await lines.append(made, images)
        await lines.append(record(None, error=FAILURE))
    assert [(tmp_path / shot["path"]).read_bytes() for shot in made["screenshots"]] == [b"\x89PNG 1", b"\x89PNG 2"]
    (tmp_path / "screenshots" / "mine.png").write_bytes(b"")
    with Trajectories.create(tmp_path, overwrite=True):
        assert [path.name for path in (tmp_path / "screenshots").iterdir()] == ["mine.png"]
    (tmp_path / "other" / "screenshots").mkdir(parents=True)
    (tmp_path / "other" / "screenshots" / "1-1.png").write_bytes(b"")
    with Trajectories.create(tmp_path / "other", overwrite=False):
        assert (tmp_path / "other" / "screenshots" / "1-1.png").exists()


async def test_every_record_has_the_same_fields() -> None:
    full, empty = record(await episode("done"), verdict=SOLVED), record(None, error=FAILURE)
    assert list(full) == list(empty)
    assert {name: type(value) for name, value in full.items() if name != "solved"} == {
        name: type(value) for name, value in empty.items() if name != "solved"
    }
