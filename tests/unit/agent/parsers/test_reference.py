"""Well-formed texts of the formats, and what the public parsers of serving engines make of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from hermes_agent.parsers import get_parser
from tests.unit.agent.parsers.families import made

pytestmark = [pytest.mark.loops]


class Case(NamedTuple):
    """A text, and its calls and content as the reference has them but for white space around the content."""

    name: str
    text: str
    calls: list[tuple[str, dict[str, Any]]]
    content: str | None = None
    ids: list[str] | None = None


def _schema(**types: object) -> dict[str, Any]:
    return {"properties": {key: kind if isinstance(kind, dict) else {"type": kind} for key, kind in types.items()}}


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in {
        "weather": _schema(city="string", state="string", unit="string", date="string"),
        "area": _schema(shape="string", size="object", digits="integer"),
        "now": {},
        "add": _schema(a="number", b="number"),
        "mixed": _schema(
            count="integer",
            share="float",
            on="boolean",
            name="string",
            more="object",
            maybe={"anyOf": [{"type": "integer"}, {"type": "null"}]},
            words={"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            either={"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        ),
        "timer": _schema(wait={"anyOf": [{"type": "object"}, {"type": "object"}]}, label=["string", "null"]),
        "send": _schema(text="string"),
    }.items()
]
OSLO: tuple[str, dict[str, Any]] = ("weather", {"city": "Oslo"})
ROME: tuple[str, dict[str, Any]] = ("weather", {"city": "Rome"})
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI = "<|tool_call_begin|>{} <|tool_call_argument_begin|>{}<|tool_call_end|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
TYPES = '{"s": "x", "i": 42, "f": 3.14, "b": true, "n": null, "l": ["a"], "o": {"k": "v"}, "e": [], "d": {}}'
TYPED: dict[str, Any] = {
    "s": "x",
    "i": 42,
    "f": 3.14,
    "b": True,
    "n": None,
    "l": ["a"],
    "o": {"k": "v"},
    "e": [],
    "d": {},
}
ESCAPED = '{"text": "He said \\"hi\\"", "path": "C:\\\\Users\\\\f", "line": "1\\n2"}'
UNESCAPED = {"text": 'He said "hi"', "path": "C:\\Users\\f", "line": "1\n2"}


def _dsml(tool: str, *parameters: tuple[str, bool, str]) -> str:
    inner = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(is_text).lower()}">{value}</｜DSML｜parameter>\n'
        for key, is_text, value in parameters
    )
    return f'<｜DSML｜invoke name="{tool}">\n{inner}</｜DSML｜invoke>\n'


def _section(*calls: str) -> str:
    return f"<｜DSML｜function_calls>\n{''.join(calls)}</｜DSML｜function_calls>"


def _glm(tool: str, line: str, **values: str) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in values.items()
    )
    return f"<tool_call>{tool}{line}{pairs}</tool_call>"


def _qwen(tool: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={tool}>\n{inner}</function>\n</tool_call>"


JSON_CASES = [
    Case("hermes", '<tool_call>\n{"name": "send", "arguments": {"on": true}}\n</tool_call>', [("send", {"on": True})]),
    Case("hermes", '<tool_call>\n{"name": "send", "arguments": {"on": true}}', [("send", {"on": True})]),
    Case(
        "hermes",
        '<tool_call>{"name": "weather",\n"arguments": {"city":\n"Oslo"}}\n</tool_call>',
        [OSLO],
    ),
    Case(
        "qwen",
        'I look.<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
        [OSLO, ROME],
        "I look.",
    ),
    Case(
        "hermes",
        '<tool_call>\n{"name": "send", "arguments": "{\\"text\\": \\"x\\"}"}\n</tool_call>',
        [("send", {"text": "x"})],
    ),
    Case(
        "longcat", f'<longcat_tool_call>{{"name": "send", "arguments": {TYPES}}}</longcat_tool_call>', [("send", TYPED)]
    ),
    Case(
        "longcat",
        f'<longcat_tool_call>{{\n"name": "send",\n"arguments": {ESCAPED}\n}}</longcat_tool_call>',
        [("send", UNESCAPED)],
    ),
    Case(
        "longcat",
        'Let me check.\n<longcat_tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</longcat_tool_call>\n'
        "Done.",
        [OSLO],
        "Let me check.\n\nDone.",
    ),
    Case("mistral", '[TOOL_CALLS][{"name": "add", "arguments":{"a": 3.5, "b": 4}}]', [("add", {"a": 3.5, "b": 4})]),
    Case("mistral", '[TOOL_CALLS] [{"arguments":{"city": "Oslo"}, "name": "weather"}]', [OSLO]),
    Case("mistral", '[TOOL_CALLS] [{"arguments":{"name": "Ada"}, "name": "age"}]', [("age", {"name": "Ada"})]),
    Case("mistral", '[TOOL_CALLS]  [ {"name":"add" , "arguments" : {"a": 3} } ]', [("add", {"a": 3})]),
    Case(
        "mistral",
        'Hello[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "weather", "arguments":{"city": "Oslo"}}]',
        [("add", {"a": 1}), OSLO],
        "Hello",
    ),
    Case("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments":{"city": "Oslo"}}]\nmore', [OSLO], "more"),
    Case(
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments":{"city": "Oslo"}, "id": "aBcD12345"}]',
        [OSLO],
        ids=["aBcD12345"],
    ),
    Case("mistral", '[TOOL_CALLS]add_this_and_that{"a": 3.5, "b": 4}', [("add_this_and_that", {"a": 3.5, "b": 4})]),
    Case("mistral", '[TOOL_CALLS]add{"a": 3.5}[TOOL_CALLS]weather{"city": "Oslo"}', [("add", {"a": 3.5}), OSLO]),
    Case(
        "mistral",
        """hi{hi[TOOL_CALLS]bash{"command": "print(\\"hello!\\")\\nre.compile(r'{}')"}""",
        [("bash", {"command": "print(\"hello!\")\nre.compile(r'{}')"})],
        "hi{hi",
    ),
    Case("mistral", 'bla[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', [OSLO], "bla"),
    Case(
        "mistral",
        '[TOOL_CALLS]weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Oslo"}'
        '[TOOL_CALLS]weather[CALL_ID]000000001[ARGS]{"city": "Rome"}',
        [OSLO, ROME],
        ids=["VvvODy9mT", "000000001"],
    ),
    Case("llama3_json", '{"name": "weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    Case("llama3_json", '{"name": "weather", "arguments": {"city": "Oslo"}}', [OSLO]),
    Case("llama4_json", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}<|eom_id|>', [OSLO]),
    *(
        Case(
            "llama3_json",
            f'{{"name": "weather", "parameters": {{"city": "Oslo"}}}}{between}{{"name": "now", "parameters": {{}}}}',
            [OSLO, ("now", {})],
        )
        for between in ("; ", " ; ", ";", ";\n", "\n")
    ),
    Case(
        "llama3_json",
        '{"name": "area", "parameters": {"a": {"b": {"c": {"d": "deep"}}}}}',
        [("area", {"a": {"b": {"c": {"d": "deep"}}}})],
    ),
    Case(
        "llama3_json",
        '{"name": "send", "parameters": {"text": "He {said} [\\"hi\\"]"}}',
        [("send", {"text": 'He {said} ["hi"]'})],
    ),
    Case("llama3_json", '{"name": "weather", "parameters": {"city": "Oslo"}} I used {it}.', [OSLO], "I used {it}."),
    Case("llama3_json", '{"parameters": {}}', [], '{"parameters": {}}'),
    Case("llama3_json", '{"name": "now"}', [], '{"name": "now"}'),
    Case("json", '{"name": "weather", "arguments": {"city": "Oslo"}}', [OSLO]),
    Case(
        "json",
        '[{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        [OSLO, ("now", {})],
    ),
    Case(
        "json",
        'Sure:\n```json\n{"name": "now", "arguments": {}}\n```\nOne moment.',
        [("now", {})],
        "Sure:\n\nOne moment.",
    ),
    Case(
        "deepseek_v3",
        BEGIN + V3.format("weather", '{"city": "Oslo"}') + V3.format("weather", '{"city": "Rome"}') + END,
        [OSLO, ROME],
    ),
    Case("deepseek_v3", BEGIN + V3.format("send", TYPES) + END, [("send", TYPED)]),
    Case("deepseek_v3", BEGIN + V3.format("send", ESCAPED) + END, [("send", UNESCAPED)]),
    Case("deepseek_v3", "Let me see." + BEGIN + V3.format("now", "{}") + END, [("now", {})], "Let me see."),
    Case(
        "deepseek_v31", "normal text" + BEGIN + V31.format("foo", '{"x":1}') + END, [("foo", {"x": 1})], "normal text"
    ),
    Case(
        "deepseek_v3_1",
        "before" + BEGIN + V31.format("foo", '{"x":1}') + V31.format("bar", '{"y":2}') + END + " after",
        [("foo", {"x": 1}), ("bar", {"y": 2})],
        "before after",
    ),
    Case(
        "kimi_k2",
        "Compare. "
        + SECTION
        + KIMI.format("functions.weather:0", '{"city": "Oslo"}')
        + KIMI.format("functions.weather:1", '{"city": "Rome"}')
        + SECTION_END,
        [OSLO, ROME],
        "Compare.",
        ["functions.weather:0", "functions.weather:1"],
    ),
    Case("kimi_k2", SECTION + KIMI.format("weather:0", '{"city": "Oslo"}') + SECTION_END, [OSLO], ids=["weather:0"]),
    Case(
        "kimi_k2",
        SECTION + KIMI.format("functions.send:0", '{\n "text": "<b>x</b>"\n}') + SECTION_END,
        [("send", {"text": "<b>x</b>"})],
    ),
    Case(
        "kimi_k2",
        SECTION + KIMI.format("functions.send.0", "{}") + KIMI.format("functions.now:1", "{}") + SECTION_END,
        [("now", {})],
    ),
]
VALUE_CASES = [
    Case("deepseek_v32", _section(_dsml("now")), [("now", {})]),
    Case(
        "deepseek_v32",
        "Sure! " + _section(_dsml("weather", ("city", True, "Oslo")), _dsml("weather", ("city", True, "Rome"))),
        [OSLO, ROME],
        "Sure!",
    ),
    Case(
        "deepseek_dsml",
        _section(_dsml("mixed", ("on", False, "true"), ("count", False, "42"))),
        [("mixed", {"on": True, "count": 42})],
    ),
    Case(
        "deepseek_v32",
        _section(_dsml("unknown", ("n", False, "42"), ("b", False, "true"))),
        [("unknown", {"n": 42, "b": True})],
    ),
    Case(
        "deepseek_v32",
        _section(_dsml("timer", ("wait", False, '{"type":"for","minutes":2880}'), ("label", False, "hello"))),
        [("timer", {"wait": {"type": "for", "minutes": 2880}, "label": "hello"})],
    ),
    Case("deepseek_v32", _section(_dsml("timer", ("label", False, "null"))), [("timer", {"label": None})]),
    Case("deepseek_v32", _section(_dsml("send", ("text", False, "null"))), [("send", {"text": "null"})]),
    Case("deepseek_v32", _section(_dsml("weather", ("arguments", False, '{"city":"Oslo"}'))), [OSLO]),
    Case("deepseek_v32", _section(_dsml("weather", ("input", True, '{"city":"Oslo"}'))), [OSLO]),
    Case(
        "deepseek_v32",
        _section(_dsml("add", ("a", False, "3.14"), ("b", False, "5.0"))),
        [("add", {"a": 3.14, "b": 5})],
    ),
    Case("glm45", _glm("weather", "\n", city="Oslo", state="TX"), [("weather", {"city": "Oslo", "state": "TX"})]),
    Case(
        "glm45",
        _glm("weather", "\n    ", city="Oslo") + "\n    " + _glm("weather", "\n    ", city="Rome"),
        [OSLO, ROME],
    ),
    Case(
        "glm45",
        "I help. " + _glm("weather", "\n", city="Oslo", date="2025-08-01"),
        [("weather", {"city": "Oslo", "date": "2025-08-01"})],
        "I help.",
    ),
    Case("glm45", "<tool_call>now\n</tool_call>", [("now", {})]),
    Case(
        "glm45", _glm("other", "\n", n="5", s="high", o='{"a": 1}'), [("other", {"n": 5, "s": "high", "o": {"a": 1}})]
    ),
    Case(
        "glm45",
        "One.\n\n" + _glm("weather", "\n", city="Oslo") + "\n\nTwo.\n\n" + _glm("weather", "\n", city="Rome"),
        [OSLO, ROME],
        "One.\n\n\n\nTwo.",
    ),
    Case("glm47", "<tool_call>now</tool_call>", [("now", {})]),
    Case("glm47", "  \n  <tool_call>now</tool_call>", [("now", {})]),
    Case("glm47", _glm("weather", "", city="Oslo") + _glm("weather", "", city="Rome"), [OSLO, ROME]),
    Case("glm47", "Checking." + _glm("weather", "\n", city="Oslo"), [OSLO], "Checking."),
    Case("qwen3_coder", _qwen("weather", city="Oslo", state="TX"), [("weather", {"city": "Oslo", "state": "TX"})]),
    Case(
        "qwen3_coder",
        "Sure!" + _qwen("weather", city="Oslo") + "\n" + _qwen("weather", city="Rome"),
        [OSLO, ROME],
        "Sure!",
    ),
    Case(
        "qwen3_coder",
        _qwen("area", shape="rectangle", size='{"width": 10, \n "height": 20}', digits="2"),
        [("area", {"shape": "rectangle", "size": {"width": 10, "height": 20}, "digits": 2})],
    ),
    Case("qwen3_coder", "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>", [OSLO]),
    Case(
        "qwen3_coder", "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>", [("add", {"a": 1})]
    ),
    Case("qwen3_coder", _qwen("unknown", n="42", o='{"a": 1}'), [("unknown", {"n": "42", "o": '{"a": 1}'})]),
    Case(
        "qwen3_coder",
        _qwen(
            "mixed",
            count="42",
            share="3.14",
            on="true",
            name="hello world",
            more='{"k": "v"}',
            maybe="5",
            words='["a"]',
            either="some text",
        ),
        [
            (
                "mixed",
                {
                    "count": 42,
                    "share": 3.14,
                    "on": True,
                    "name": "hello world",
                    "more": {"k": "v"},
                    "maybe": 5,
                    "words": ["a"],
                    "either": "some text",
                },
            )
        ],
    ),
    Case(
        "qwen3_coder",
        _qwen("mixed", maybe="null", words="None", either="null"),
        [("mixed", {"maybe": None, "words": None, "either": None})],
    ),
]


@pytest.mark.parametrize("case", [*JSON_CASES, *VALUE_CASES], ids=lambda case: case.name)
def test_well_formed_text(case: Case) -> None:
    parsed = get_parser(case.name)(case.text, TOOLS)
    assert made(parsed) == case.calls
    assert parsed.content == case.content
    assert not parsed.cut
    if case.ids is not None:
        assert [call.id for call in parsed.calls] == case.ids


@pytest.mark.parametrize("name", sorted({case.name for case in JSON_CASES + VALUE_CASES}))
def test_text_without_a_call(name: str) -> None:
    text = "How can I help? I can check {the weather} [for you]."
    parsed = get_parser(name)(text, TOOLS)
    assert (parsed.content, parsed.tool_calls, parsed.reasoning) == (text, (), None)
