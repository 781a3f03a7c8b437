"""The record of a prompt: the fields that readers of such data sets expect, and whose fault a failure was."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
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
    ShortenOldResults,
    Timings,
    TokenUsage,
    Verdict,
)
from hermes_agent.messages import TurnTokens
from hermes_agent.models.scripted import call
from hermes_batch.columns import JSON_COLUMNS
from hermes_batch.record import Record, RecordWithImages, make_record
from hermes_batch.task import Task
from hermes_batch.trajectories import Trajectories
from hermes_batch.units import Unit
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import ToolResult
from tests.unit.agent.toolboxes import FunctionTools, result

pytestmark = pytest.mark.anyio
GROUP = "0" * 32
TASK = Task(index=3, place="line 4", group=GROUP, prompt="go", id="x")
FAILURE = EpisodeError(1, "infra", "SandboxDied", "gone")
SOLVED = Verdict(1.0, solved=True, exit_code=0, output="1 passed")


class Terminal(FunctionTools):
    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
            for name in ("terminal", "my_own")
        ]


async def tool(arguments: dict[str, Any]) -> ToolResult:
    return result("{}", ok=arguments["x"] == 1, error_kind=None if arguments["x"] == 1 else "exit")


async def episode(*steps: Completion | str | Exception) -> Episode:
    return await AgentLoop(ScriptedModel(steps), Terminal(tool), max_turns=3).run("go")


def make(of: Episode | None, **more: Any) -> RecordWithImages:
    unit = Unit(TASK, more.pop("sample", 0))
    cause = more.pop("cause", ErrorCause.INFRA if of is None else of.cause)
    result = RolloutResult(of, cause=cause, isolation="namespaces", sandbox="local-1", seconds=1.23456, **more)
    begin = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
    return make_record(unit, begin, result, model="m", toolsets=["terminal"], backend="local", image="")


def record(of: Episode | None, **more: Any) -> Record:
    return make(of, **more).record


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
    assert json.loads(made["tool_stats"]) == {
        "my_own": {"count": 0, "success": 0, "failure": 0},
        "terminal": {"count": 2, "success": 1, "failure": 1},
    }
    assert json.loads(made["tool_error_counts"]) == {"my_own": 0, "terminal": 1}
    assert json.loads(made["unknown_tools"]) == ["ghost", "web_search"]
    assert [(c["name"], c["state"], c["ok"]) for c in json.loads(made["calls"])] == [
        *(("terminal", "ended", True), ("terminal", "ended", False)),
        *(("ghost", "ended", False), ("web_search", "ended", False)),
    ]
    assert made["check"] == {"exit_code": 0, "timed_out": False, "output": "1 passed"}
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("answered", "policy", True, "solved")
    assert made["seconds"] == 1.235


async def test_token_ids_are_left_out_beside_a_masked_secret() -> None:
    turns = [TurnTokens((1, 2), (3,), (-0.5,)), TurnTokens((4,), (5, 6), None)]
    steps = [Completion("", (call("terminal", {"x": 1}),), tokens=turns[0]), Completion("done", tokens=turns[1])]
    whole = await episode(*steps)
    assert json.loads(record(whole)["tokens"]) == [
        {"added": [1, 2], "ids": [3], "logprobs": [-0.5], "restarts": False},
        {"added": [4], "ids": [5, 6], "logprobs": None, "restarts": False},
    ]
    masked = make_record(
        Unit(TASK), [], RolloutResult(whole), model="m", toolsets=[], backend="local", image="", mask=mask_done
    ).record
    assert (masked["tokens"], json.loads(masked["messages"])[-1]["content"]) == ("[]", "***")


def mask_done(data: object) -> object:
    """Mask the text `done` wherever it is."""
    if isinstance(data, dict):
        return {name: mask_done(value) for name, value in data.items()}
    return [mask_done(each) for each in data] if isinstance(data, list) else "***" if data == "done" else data


async def test_usage_times_and_sampling() -> None:
    first, last = TokenUsage(10, 5, 1, 0.25, 3, 2), TokenUsage(20, 2, 1, 0.5, 1, 15)
    steps = [Completion("", (call("terminal", {"x": 1}),), usage=first), Completion("done", usage=last)]
    loop = AgentLoop(ScriptedModel(steps), Terminal(tool), sampling={"seed": 7, "top_p": None, "processor": tool})
    started = datetime(2026, 11, 29, 13, tzinfo=UTC)
    timings = Timings(queue_s=0.12345, model_s=1.0)
    made = record(await loop.run("go"), timings=timings, started=started, ended=started + timedelta(seconds=1.5))
    assert json.loads(made["usage"]) == [
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "reasoning_tokens": 3,
            "cached_tokens": 2,
            "cost": 0.25,
            "finish_reason": "stop",
        },
        {
            "prompt_tokens": 20,
            "completion_tokens": 2,
            "reasoning_tokens": 1,
            "cached_tokens": 15,
            "cost": 0.5,
            "finish_reason": "stop",
        },
    ]
    assert (made["reasoning_tokens"], made["cached_tokens"], made["cost"], made["api_calls"]) == (4, 17, 0.75, 2)
    assert made["timings"] == {"queue_s": 0.123, "setup_s": 0.0, "model_s": 1.0, "tools_s": 0.0, "check_s": 0.0}
    assert (made["started"], made["ended"]) == ("2026-11-29T13:00:00.000+00:00", "2026-11-29T13:00:01.500+00:00")
    sampling = json.loads(made["sampling"])
    assert sampling.pop("processor").startswith("<function tool")
    assert sampling == {"temperature": 1.0, "seed": 7}
    assert (made["compacted"], made["version"]) == (False, version("hermes-exec"))


async def test_shortened_context_is_recorded() -> None:
    context = ShortenOldResults(1, first=1, last=1)
    steps = [Completion("", (call("terminal", {"x": 1}),))] * 3
    loop = AgentLoop(ScriptedModel([*steps, "done"]), Terminal(tool), context=context)
    assert record(await loop.run("go"))["compacted"] is True


async def test_record_has_its_key_and_reward() -> None:
    info = {"tests": [1, None], "note": "é"}
    made = record(await episode("done"), sample=2, verdict=Verdict(0.25, solved=False, info=info))
    assert (made["group"], made["sample"], made["reward"]) == (GROUP, 2, "0.25")
    assert json.loads(made["reward_info"]) == info
    unscored = record(await episode("done"), verdict=Verdict(1.0, solved=True, info=info), error=FAILURE)
    assert (unscored["reward"], unscored["reward_info"]) == ("null", "{}")


async def test_infra_failure_is_never_a_score() -> None:
    made = record(await episode("done"), verdict=SOLVED, error=FAILURE, cause=ErrorCause.INFRA)
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == ("infra", "infra", False, "unscored")
    assert (made["completed"], made["partial"]) == (False, True)
    assert json.loads(made["errors"]) == [{"turn": 1, "where": "infra", "kind": "SandboxDied", "message": "gone"}]


async def test_a_check_without_a_verdict_is_told_and_not_scored() -> None:
    late = CheckFailed("the check took longer than 60 s")
    made = record(await episode("done"), error=EpisodeError(1, "infra", "CheckFailed", str(late)), exception=late)
    assert (made["finish"], made["trainable"], made["solved"]) == ("infra", False, "unscored")
    assert made["check"] == {"exit_code": -1, "timed_out": True, "output": ""}


async def test_model_error_is_never_a_score() -> None:
    made = record(await episode(ModelError("down")), verdict=SOLVED)
    assert (made["finish"], made["cause"], made["trainable"], made["solved"]) == (
        "model_error",
        "provider",
        False,
        "unscored",
    )
    assert [error["kind"] for error in json.loads(made["errors"])] == ["ModelError"]


async def test_prompt_that_never_had_a_slot() -> None:
    made = record(None, error=FAILURE, cause=ErrorCause.PROVIDER)
    assert (made["finish"], made["cause"], made["trainable"], made["api_calls"]) == ("infra", "provider", False, 0)
    assert [turn["from"] for turn in made["conversations"]] == ["system", "human"]
    assert made["conversations"][0]["value"].endswith("be brief")
    assert [message["content"] for message in json.loads(made["messages"])] == ["be brief", "go"]
    assert (made["tools"], made["tool_stats"], made["solved"]) == ("[]", "{}", "unscored")


async def test_messages_and_tools_are_those_that_the_model_was_sent() -> None:
    arguments = '{"x": 1.10}'
    asked = Completion("  two", (call("terminal", {})._replace(arguments=arguments),), reasoning="hm\n")
    model = ScriptedModel([asked, "done"])
    made = record(await AgentLoop(model, Terminal(tool), max_turns=3).run("go"))
    messages = json.loads(made["messages"])
    assert messages[:-1] == list(model.requests[1].messages)
    assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("  two", "hm\n")
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == arguments
    assert json.loads(made["tools"]) == list(model.requests[1].tools)
    assert (made["exportable"], made["export_problem"], made["solved"]) == (True, "", "unchecked")


async def test_a_rendering_that_would_re_read_otherwise_is_not_exportable() -> None:
    made = record(await episode(Completion("A call is <tool_call>{}</tool_call>.")))
    assert not made["exportable"]
    assert made["export_problem"] == "message 2 (assistant) quotes <tool_call> in its text"


async def test_images_of_results_are_files_beside_the_records(tmp_path: Path) -> None:
    async def picture(arguments: dict[str, Any]) -> ToolResult:
        return replace(result("{}"), images=(b"\x89PNG %d" % arguments["x"],), shows_images=True)

    calls = Completion("", (call("terminal", {"x": 1}), call("terminal", {"x": 2})))
    jpeg = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{b64encode(b'jpeg').decode()}"}}
    far = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    begin = [{"role": "user", "content": [{"type": "text", "text": "look"}, jpeg, far]}]
    seen = await AgentLoop(ScriptedModel([calls, "done"]), Terminal(picture)).run(begin)
    made, images = make(seen)
    ids = [call.call_id for call in seen.tool_calls]
    shots = [{"tool_call_id": ids[at], "path": f"screenshots/{GROUP}-0-{at + 1}.png"} for at in range(2)]
    assert json.loads(made["screenshots"]) == [*shots, {"tool_call_id": "", "path": f"screenshots/{GROUP}-0-3.jpeg"}]
    messages = json.loads(made["messages"])
    addresses = [part["image_url"]["url"] for part in messages[0]["content"][1:]]
    assert addresses == [f"screenshots/{GROUP}-0-3.jpeg", "https://example.com/a.png"]
    assert messages[2]["content"][1]["image_url"]["url"] == f"screenshots/{GROUP}-0-1.png"
    assert "an image" not in made["export_problem"]
    assert (made["exportable"], "base64" in json.dumps(made)) == (False, False)
    with Trajectories.create(tmp_path, overwrite=False) as lines:
        await lines.append(made, images)
        await lines.append(*make(None, error=FAILURE))
    files = {path.name: path.read_bytes() for path in (tmp_path / "screenshots").iterdir()}
    assert files == {f"{GROUP}-0-1.png": b"\x89PNG 1", f"{GROUP}-0-2.png": b"\x89PNG 2", f"{GROUP}-0-3.jpeg": b"jpeg"}
    (tmp_path / "screenshots" / "mine.png").write_bytes(b"")
    with Trajectories.create(tmp_path, overwrite=True):
        assert [path.name for path in (tmp_path / "screenshots").iterdir()] == ["mine.png"]
    (tmp_path / "other" / "screenshots").mkdir(parents=True)
    (tmp_path / "other" / "screenshots" / "1-1.png").write_bytes(b"")
    with Trajectories.create(tmp_path / "other", overwrite=False):
        assert (tmp_path / "other" / "screenshots" / "1-1.png").exists()


async def test_every_record_has_the_same_fields_of_the_same_types() -> None:
    full, empty = record(await episode("done"), verdict=SOLVED), record(None, error=FAILURE)
    assert list(full) == list(empty)
    types = {name: type(value) for name, value in full.items()}
    assert types == {name: type(value) for name, value in empty.items()}
    assert {types[name] for name in JSON_COLUMNS} == {str}
