"""No text takes more than a time in proportion to it: a megabyte of the worst for each family.

A parser that is not linear needs minutes for one of these; the time limit of a test is far from what they take.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.agent.parsers.families import NAMES, TAGS, call, made, parse

pytestmark = [pytest.mark.timeout(60)]

MEGABYTE = 1_000_000
ALIASES = {"qwen", "llama4_json", "deepseek_v3_1", "deepseek_dsml", "glm47"}
FAMILIES = [name for name in NAMES if name not in ALIASES]

AFTER = [
    "",
    "{",
    '{"a": "',
    '"',
    "\\",
    '\\"',
    "[",
    "[[[[",
    '{"a":',
    "{},",
    "x,",
    "\n",
    " ",
    "x",
    '"}',
    '{"name": "a", "arguments": ',
]
ANY = ["<think>", "</think>", "<think></think>", "<", "[", "[1,", '{"a":', '"', "\\", "\\\\", "\n", " ", "`", "```"]
OWN = {
    "mistral": ["[TOOL_CALLS] [", "[TOOL_CALLS] [{oops},", "[TOOL_CALLS]a[CALL_ID]", "[TOOL_CALLS] [{},", "[TOOL_CAL"],
    "json": [
        '{"name": "a", "arguments": {}}\n',
        '[{"name": "a", "arguments": {}},',
        '{"name": "a", "arguments": {"x": "',
    ],
    "llama3_json": ['{"name": "a", "parameters": {}}; ', '{"name": "a", "parameters": {"x": "', "<|python_tag"],
    "deepseek_v3": [
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n",
    ],
    "deepseek_v31": [
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    ],
    "kimi_k2": [
        "<|tool_call_begin|>",
        "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    "deepseek_v32": [
        '<｜DSML｜invoke name="a">',
        '<｜DSML｜invoke name="a"><｜DSML｜parameter name="path" string="true">',
        '<｜DSML｜parameter name="path" string="true">',
        "<｜DSML｜invoke",
        "</｜DSML｜parameter>",
    ],
    "glm45": [
        "<tool_call>a<arg_key>path</arg_key><arg_value>",
        "<tool_call>a<arg_key>path</arg_key>",
        "<arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
        "<tool_ca",
    ],
    "qwen3_coder": [
        "<function=a>",
        "<tool_call><function=a><parameter=path>",
        "\n<parameter=path>",
        "\n<parameter=other>",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "<function",
    ],
}


def units(name: str) -> Iterator[str]:
    tags = TAGS[name]
    marks = [tags.opening, tags.head, *OWN.get(name, []), tags.opening[:-1]]
    yield from ANY
    for mark in dict.fromkeys(marks):
        for piece in AFTER:
            yield mark + piece
            yield piece + mark


def worst(name: str) -> list[str]:
    """Units of which each stands for others: openings alone, and with quotes out of step."""
    tags = TAGS[name]
    return [tags.opening, "\\" + tags.head + '{"', *OWN.get(name, [])[:1]]


@pytest.mark.parametrize(("name", "unit"), [(name, unit) for name in FAMILIES for unit in worst(name)])
def test_a_megabyte_of_the_worst(name: str, unit: str) -> None:
    parse(name, unit * (MEGABYTE // len(unit)) + TAGS[name].closing)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_megabyte_of_thinking(name: str) -> None:
    for unit in ("<think></think>", "<think>", "</think>", "`</think>", "<think>```\n</think>\n"):
        parse(name, unit * (MEGABYTE // len(unit)))


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_hundred_kilobytes_of_everything(name: str) -> None:
    for unit in units(name):
        again = unit * (MEGABYTE // 10 // len(unit))
        for text in (again, TAGS[name].head + again + TAGS[name].closing):
            parse(name, text)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_of_a_megabyte(name: str) -> None:
    for content in ("x" * MEGABYTE, '\\"\n' * (MEGABYTE // 4), "</tool_call>\n<tool_call>" * (MEGABYTE // 25)):
        assert made(parse(name, call(name, "a", content=content))) == [("a", {"content": content})]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_megabyte_of_ordinary_calls(name: str) -> None:
    one = call(name, "write_file", path="a.py", content="print('hello')\n")
    count = MEGABYTE // len(one)
    parsed = parse(name, one * count)
    assert (len(parsed.calls), parsed.errors) == (count, ())
    assert len({made.id for made in parsed.calls}) == count


@pytest.mark.parametrize("name", FAMILIES)
def test_a_megabyte_of_broken_calls(name: str) -> None:
    one = call(name, "write_file", path="a.py").replace("write_file", "")
    assert parse(name, one * (MEGABYTE // len(one))).calls == ()
