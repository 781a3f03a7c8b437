"""Orders of messages that many chat templates refuse, on the templates of six families."""

from __future__ import annotations

import pytest

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.message_order import arrange_messages
from hermes_agent.messages import Message
from tests.unit.agent.gateway.policy import Policy, answers_of, ask, go_on
from tests.unit.agent.tokens.families import FAMILIES

SYSTEM: Message = {"role": "system", "content": "Be good."}
DEVELOPER: Message = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
USER: Message = {"role": "user", "content": "Hello"}
CALL: Message = {"id": "call_1", "type": "function", "function": {"name": "do", "arguments": '{"x": "a"}'}}
CALLING: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "tool_call_id": "call_1", "content": "done"}

ORDERS = {
    "system and developer": [SYSTEM, DEVELOPER, USER],
    "users in a row": [SYSTEM, USER, USER],
    "codex": [DEVELOPER, DEVELOPER, USER, USER],
    "claude-code": [SYSTEM, USER, SYSTEM, {**DEVELOPER, "role": "system"}],
    "system after a result": [USER, CALLING, RESULT, SYSTEM],
    "user after a result": [USER, CALLING, RESULT, USER, USER],
    "assistants in a row": [USER, {"role": "assistant", "content": "I do"}, CALLING, RESULT],
    "without calls": [USER, {"role": "assistant", "content": "I do", "tool_calls": []}, USER],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FAMILIES)
async def test_order_is_accepted_by_every_template_and_continued(name: str, order: str) -> None:
    sampler = Policy(FAMILIES[name], answers_of(FAMILIES[name], lambda _: 1))
    async with Capture(sampler.model()) as capture:
        first = await ask(capture, ORDERS[order])
        second = await ask(capture, [*go_on(ORDERS[order], first), SYSTEM, USER])
    assert second.node.parent is first.node
    text = sampler.model().template.text(sampler.log[1].prompt)
    assert text.count("Hello") == sum(message is USER for message in ORDERS[order]) + 1
    assert text.count("Be good.") == sum(message is SYSTEM for message in ORDERS[order]) + 1


def test_leading_system_messages_are_one_and_later_ones_are_of_the_user() -> None:
    assert arrange_messages([SYSTEM, DEVELOPER, USER, SYSTEM]) == [
        {"role": "system", "content": "Be good.\n\nBe brief."},
        {"role": "user", "content": "Hello\n\nBe good."},
    ]


def test_results_get_the_ids_and_names_of_their_calls() -> None:
    known = {**CALL, "id": "abcDEF123"}
    messages = [USER, {**CALLING, "tool_calls": [CALL, known]}, RESULT, {**RESULT, "tool_call_id": "abcDEF123"}]
    _, calling, first, second = arrange_messages(messages)
    assert [first["tool_call_id"], second["tool_call_id"]] == [call["id"] for call in calling["tool_calls"]]
    assert (len(first["tool_call_id"]), second["tool_call_id"]) == (9, "abcDEF123")
    assert (first["name"], second["name"]) == ("do", "do")
    assert messages[2] == RESULT


def test_id_that_a_harness_uses_again_is_the_latest_call() -> None:
    other = {**CALL, "function": {"name": "see", "arguments": "{}"}}
    turns = [USER, CALLING, RESULT, {**CALLING, "tool_calls": [other]}, RESULT]
    arranged = arrange_messages(turns)
    assert [arranged[place]["tool_call_id"] for place in (2, 4)] == [
        arranged[place]["tool_calls"][0]["id"] for place in (1, 3)
    ]
    assert [arranged[place]["name"] for place in (2, 4)] == ["do", "see"]


def test_images_stay_with_their_message() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    (message,) = arrange_messages([USER, {"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
    assert message == {"role": "user", "content": [{"type": "text", "text": "Hello\n\nsee"}, image]}
