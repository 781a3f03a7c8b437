"""Keys of conversations: which differences count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_agent.messages import Completion, Message, ToolCall, assistant_message
from hermes_agent.turn_tree import TurnIndex, TurnNode, conversation_keys, extend_key, tools_key

USER: Message = {"role": "user", "content": "Hello"}


def key_of(*calls: str, content: str | None = "") -> bytes:
    answer = Completion(content, tuple(ToolCall("abcdefghi", "do", call) for call in calls))
    keys = conversation_keys([USER, assistant_message(answer)])
    assert extend_key(keys[1], answer) == keys[2]
    return keys[2]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"a": 1, "b": [2]}', '{ "b":[2], "a":1 }', True),
        ('{"a": 1.0}', '{"a": 1}', True),
        ('{"a": 1.5}', '{"a": 1}', False),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": "é"}', r'{"a": "\u00e9"}', True),
        ("ls", '{"arguments": "ls"}', True),
        ("[1]", '{"arguments": "[1]"}', True),
        ("", "{}", False),
        ("[" * 100_000, "[" * 99_999, False),
        (f'{{"a": {"9" * 5000}}}', f'{{"a": {"9" * 5001}}}', False),
        (r'{"a": "\ud800"}', '{"a": "?"}', True),
    ],
)
def test_arguments_are_compared_as_values(one: str, other: str, equal: bool) -> None:
    assert (key_of(one) == key_of(other)) == equal


def test_calls_and_text_cannot_stand_for_each_other() -> None:
    assert (
        len({key_of("1", "2"), key_of("12"), key_of("1", content="2"), key_of(content="12"), key_of(content="2:do")})
        == 5
    )


def test_images_and_tools_count() -> None:
    def image(data: str) -> list[Message]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}]

    assert conversation_keys(image("a"))[-1] != conversation_keys(image("b"))[-1]
    tool: dict[str, Any] = {"type": "function", "function": {"name": "do"}}
    keys = {tools_key(name, tools) for name in ("a", "b") for tools in ((), (tool,))}
    assert len({conversation_keys([USER], key)[-1] for key in keys}) == 4


@given(texts=st.lists(st.text(max_size=3), max_size=4), others=st.lists(st.text(max_size=3), max_size=4))
def test_key_is_equal_only_for_equal_conversations(texts: list[str], others: list[str]) -> None:
    one, other = ([{"role": "user", "content": text} for text in each] for each in (texts, others))
    assert (conversation_keys(one)[-1] == conversation_keys(other)[-1]) == (texts == others)


def test_index_finds_the_longest_turn() -> None:
    index: TurnIndex[TurnNode] = TurnIndex()
    nodes: list[TurnNode] = []
    messages: list[Message] = []
    for number in range(3):
        messages = [*messages, USER]
        keys = conversation_keys(messages)
        nodes.append(TurnNode(nodes[-1] if nodes else None, Completion(f"{number}"), keys[-1], len(keys)))
        index.add(nodes[-1])
        messages = [*messages, {"role": "assistant", "content": f" {number}\n"}]
    assert [index.find(conversation_keys(messages[:size])) for size in range(7)] == [
        *([], [], nodes[:1], nodes[:1], nodes[1:2], nodes[1:2], nodes[2:])
    ]
    assert [node.continues_to(conversation_keys(messages[:5])) for node in nodes] == [True, True, False]
