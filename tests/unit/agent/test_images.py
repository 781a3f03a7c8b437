"""Images of results: what the model is sent, what is recorded, and what a long conversation does with them."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from hermes_agent import AgentLoop, Message, OpenAIModel, ScriptedModel, ShortenOldResults
from hermes_agent.context import IMAGE_CHARS
from hermes_agent.messages import Completion, ToolCall, tool_message
from hermes_agent.models.scripted import call
from hermes_exec.tools import Notice, ToolResult
from tests.unit.agent.endpoint import endpoint, ok
from tests.unit.agent.toolboxes import FunctionTools, result

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
PNG = b"\x89PNG one"
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(PNG).decode()}"}}
LOOK = Completion("", (call("do", {"x": 1}),))
ASK = [{"role": "user", "content": "look"}]


class Camera(FunctionTools):
    """A tool whose results have an image."""

    def __init__(self, *, shows_images: bool, notices: tuple[Notice, ...] = ()) -> None:
        super().__init__(self._picture)
        self._shows, self._notices = shows_images, notices

    async def _picture(self, arguments: dict[str, Any]) -> ToolResult:
        return replace(result('{"path": "/a.png"}'), images=(PNG,), shows_images=self._shows)

    async def notices(self) -> tuple[Notice, ...]:
        told, self._notices = self._notices, ()
        return told


async def test_a_model_that_sees_is_shown_the_image() -> None:
    model = ScriptedModel([LOOK, "seen"])
    episode = await AgentLoop(model, Camera(shows_images=True)).run(ASK)
    assert model.requests[1].messages[-1]["content"] == [{"type": "text", "text": '{"path": "/a.png"}'}, PART]
    assert (episode.tool_calls[0].content, episode.tool_calls[0].images) == ('{"path": "/a.png"}', (PNG,))
    assert "/a.png" in episode.to_sharegpt()[3]["value"]
    assert "base64" not in json.dumps(episode.to_sharegpt())


async def test_a_model_that_does_not_is_not_and_the_record_has_it() -> None:
    model = ScriptedModel([LOOK, "done"])
    episode = await AgentLoop(model, Camera(shows_images=False)).run(ASK)
    assert model.requests[1].messages[-1]["content"] == '{"path": "/a.png"}'
    assert episode.tool_calls[0].images == (PNG,)


async def test_a_notice_stands_in_the_text_beside_the_image() -> None:
    model = ScriptedModel([LOOK, "seen"])
    notice = Notice("p1", "exited", "p1 ended", {})
    await AgentLoop(model, Camera(shows_images=True, notices=(notice,))).run(ASK)
    text, image = model.requests[1].messages[-1]["content"]
    assert json.loads(text["text"]) == {"path": "/a.png", "notices": ["p1 ended"]}
    assert image == PART


async def test_an_endpoint_gets_images_from_the_user() -> None:
    """OpenAI's refuses them in results."""
    calls = (call("do", {"x": 1}), call("do", {"x": 2}))
    messages = [
        *ASK,
        {"role": "assistant", "content": ""},
        tool_message(calls[0], "one", (PNG,)),
        tool_message(calls[1], "two"),
        {"role": "assistant", "content": "ok"},
    ]
    with endpoint(ok({"content": "x"}), ok({"content": "x"})) as server:
        for text_tools in (False, True):
            model = OpenAIModel("m", base_url=server.base_url, text_tools=text_tools)
            await model.complete(messages, ())
            await model.aclose()
    sent = server.requests[0]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert [message["content"] for message in sent[2:4]] == ["one", "two"]
    assert sent[4]["content"] == [{"type": "text", "text": "Images of the results above, of do:"}, PART]
    told = server.requests[1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant"]
    assert told[2]["content"][1:] == [PART]
    assert messages[2]["content"] == [{"type": "text", "text": "one"}, PART]


def test_old_images_are_left_out_first() -> None:
    history: list[Message] = [*ASK, {"role": "assistant", "content": ""}]
    for number in range(3):
        history += [tool_message(ToolCall(str(number), "do", "{}"), "x", (PNG,)), {"role": "assistant", "content": "y"}]
    left = ShortenOldResults(2 * IMAGE_CHARS + 100, first=1, last=1)(history)
    assert [message["content"] for message in left if message["role"] == "tool"] == [
        "x",
        *([{"type": "text", "text": "x"}, PART] for _ in range(2)),
    ]
