"""Every format of calls over a real endpoint: as text beside native tools, and as text alone; and native calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_agent import AgentLoop, Episode, OpenAIModel, ToolCall
from hermes_agent.parsers import FORMATS, get_parser, get_renderer
from tests.unit.agent.endpoint import Endpoint, endpoint, ok
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
NAMES = sorted(FORMATS)
VALUES = ["12", 'quoted "text"\n  and </think> more']


class Typed(FunctionTools):
    @property
    def schemas(self) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
        return [{"type": "function", "function": {"name": "do", "description": "Do it", "parameters": parameters}}]


async def episode(server: Endpoint, tools: Typed, **options: Any) -> Episode:
    model = OpenAIModel("m", base_url=server.base_url, **options)
    try:
        return await AgentLoop(model, tools).run("go")
    finally:
        await model.aclose()


@pytest.mark.parametrize("text_tools", [False, True])
@pytest.mark.parametrize("name", NAMES)
async def test_calls_as_text(name: str, text_tools: bool) -> None:
    calls = [ToolCall("", "do", json.dumps({"x": value})) for value in VALUES]
    said = "<think>\nhm\n</think>\n\n" + get_renderer(name)(calls)
    tools = Typed(echo)
    with endpoint(ok({"content": said}), ok({"content": "done"})) as server:
        done = await episode(server, tools, parser=name, text_tools=text_tools)
    assert (done.finish, done.answer, done.reasoning) == ("answered", "done", ("hm", None))
    assert [json.loads(arguments) for _, arguments, _ in tools.calls] == [{"x": value} for value in VALUES]
    assert len({made.call_id for made in done.tool_calls}) == len(VALUES)
    first, second = server.requests
    assert ("tools" in first, "tools" in second) == (not text_tools, not text_tools)
    if text_tools:
        roles = [message["role"] for message in second["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert second["messages"][2]["content"] == get_renderer(name)(
            [call._replace(id=made.call_id) for call, made in zip(calls, done.tool_calls, strict=True)]
        )
        assert second["messages"][3]["content"].count("<tool_response>") == len(VALUES)
        assert second["messages"][: len(first["messages"])] == first["messages"]


async def test_native_calls() -> None:
    wire = [
        {"id": f"c{at}", "type": "function", "function": {"name": "do", "arguments": json.dumps({"x": value})}}
        for at, value in enumerate(VALUES)
    ]
    tools = Typed(echo)
    with endpoint(ok({"content": None, "tool_calls": wire}), ok({"content": "done"})) as server:
        done = await episode(server, tools)
    assert (done.finish, [made.call_id for made in done.tool_calls]) == ("answered", ["c0", "c1"])
    assert server.requests[1]["messages"][1]["tool_calls"] == wire


@pytest.mark.parametrize("name", NAMES)
async def test_the_prompt_of_text_tools_asks_for_the_form_that_is_read(name: str) -> None:
    with endpoint(ok({"content": "done"})) as server:
        await episode(server, Typed(echo), parser=name, text_tools=True)
    prompt = server.requests[0]["messages"][0]["content"]
    if get_renderer(name) is get_renderer("hermes"):
        assert "<tool_call>\n{'name': <function-name>,'arguments': <args-dict>}\n</tool_call>" in prompt
    else:
        example = prompt.partition("Write each function call like this:\n")[2]
        (call,) = get_parser(name)(example, ()).calls
        assert (call.name, json.loads(call.arguments)) == ("function_name", {"argument_name": "value"})


async def test_calls_as_text_without_a_parser_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, anyio_backend_name: str
) -> None:
    name = f"one on {anyio_backend_name}"  # a process warns once of each model
    said = ok({"content": '<tool_call>{"name": "do", "arguments": {}}</tool_call>'})
    with endpoint(said, said) as server:
        model = OpenAIModel(name, base_url=server.base_url)
        for _ in range(2):
            assert (await AgentLoop(model, Typed(echo)).run("go")).finish == "answered"
        await model.aclose()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{name} writes calls as text, in the format 'hermes', which is not read: set parser='hermes'"
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>\n", "\n<|observation|>", "<｜end▁of▁sentence｜>"])
def test_the_end_of_a_turn_is_no_content(name: str, end: str) -> None:
    text = get_renderer(name)([ToolCall("", "do", '{"x": "1"}')])
    parsed = get_parser(name)(text + end, Typed(echo).schemas)
    assert (parsed.content, [call.arguments for call in parsed.calls]) == (None, ['{"x": "1"}'])
    assert get_parser(name)(f"Done.{end}", ()).content == "Done."
