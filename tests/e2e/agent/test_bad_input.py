"""What models and services may send, and what a model is told then: nothing ends an episode that need not."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from hermes_agent import AgentLoop, Completion, Episode, OpenAIModel, ScriptedModel, ToolCall, get_parser
from hermes_agent.models.scripted import ScriptStep, call
from hermes_exec import SandboxPool
from hermes_exec.errors import ConfigError
from hermes_exec.tools import Toolbox
from tests.unit.agent.endpoint import Answer, endpoint, ok

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def episode(*steps: ScriptStep, **bounds: Any) -> Episode:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        with anyio.fail_after(60):
            return await AgentLoop(ScriptedModel(steps), Toolbox(slot), **bounds).run("go")


async def test_arguments_of_ten_megabytes() -> None:
    content = "0123456789\n" * 1_000_000
    calls = (
        call("write_file", {"path": "big", "content": content}, call_id="a"),
        call("terminal", {"command": f"tail -c 2 <<'END'\n{content}END"}, call_id="b"),
    )
    done = await episode(Completion("", calls), Completion("", (call("terminal", {"command": "wc -c < big"}),)), "done")
    assert done.finish == "answered"
    assert json.loads(done.messages[2]["content"])["bytes_written"] == len(content)
    assert json.loads(done.messages[5]["content"])["output"].strip() == str(len(content))
    assert json.loads(done.messages[3]["content"])["output"] == "9\n"


async def test_text_that_is_no_unicode() -> None:
    half = '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "\\ud83d"}}</tool_call>'
    raw = ToolCall("c", "terminal", '{"command": "echo \udcff"}')
    done = await episode(half, Completion("\udcff", (raw,)), "done \ud800")
    assert (done.finish, [made.error_kind for made in done.tool_calls]) == ("answered", ["bad_value", "bad_value"])
    assert "half of a surrogate pair" in done.tool_calls[0].content
    assert json.dumps(done.to_sharegpt()).encode()


async def test_calls_without_end() -> None:
    forever = '<tool_call>{"name": "terminal", "arguments": {"command": "true"}}</tool_call>'
    done = await episode(*[forever] * 50, max_turns=20)
    assert (done.finish, done.turns, done.trainable) == ("max_turns", 20, True)
    at_once = await episode(forever * 3000, "done", max_tool_calls=5)
    assert sum(made.state == "ended" for made in at_once.tool_calls) == 5
    assert at_once.finish == "max_turns"


@pytest.mark.parametrize(
    "body", [b"<html>502</html>", b"", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"\xff\xfe", b"[1"]
)
async def test_an_answer_of_no_use_is_asked_for_again_and_then_ends_the_episode_with_its_turns(body: bytes) -> None:
    good = ok({"content": None, "tool_calls": [_wire("terminal", {"command": "echo kept"})]})
    bad = Answer(200, body, {"content-type": "application/json"})
    with endpoint(good, bad, bad) as server:
        model = OpenAIModel("m", base_url=server.base_url, max_retries=1)
        async with SandboxPool("local") as pool, pool.slot() as slot:
            done = await AgentLoop(model, Toolbox(slot)).run("go")
        await model.aclose()
    assert (done.finish, done.turns, done.trainable) == ("model_error", 1, False)
    assert "kept" in done.messages[-1]["content"]
    assert "cannot be used" in done.errors[-1].message
    assert len(server.requests) == 3


def _wire(name: str, arguments: dict[str, str]) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def test_a_parser_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no parser 'hermse'; did you mean 'hermes'"):
        get_parser("hermse")
