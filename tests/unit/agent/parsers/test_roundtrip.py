"""What a renderer writes is what the parser of the same family reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_agent.messages import ToolCall
from hermes_agent.parsers import get_parser, get_renderer
from tests.unit.agent.parsers.families import AS_JSON, NAMES, TAGS, TYPED

NASTY = [tag for tags in TAGS.values() for tag in tags if tag] + [
    "</tool_call>",
    "</arg_value>",
    "<arg_value>",
    "</parameter>",
    "\n<parameter=text>\n",
    "</function>",
    "</｜DSML｜parameter>",
    "<think>",
    "</think>",
    "[/THINK]",
    '"',
    '\\"',
    "\\",
    "\n",
    "\r\n",
    "    ",
    "\t",
    "123",
    "True",
    "null",
    '{"a": 1}',
    "[1]",
    "é🙂",
    "\u2028",
    "\ud800",
    "\x00",
    ",",
    ";",
]
texts = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(NASTY), max_size=4).map("".join))
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,12}", fullmatch=True)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "integer": st.integers(),
    "number": st.integers() | floats,
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(values, max_size=3),
    "object": st.dictionaries(texts, values, max_size=3),
}


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


@st.composite
def typed(draw: st.DrawFn) -> tuple[list[ToolCall], list[dict[str, Any]]]:
    """Calls, and the schemas of the tools that they are for."""
    tools, calls = [], []
    for name in draw(st.lists(names, max_size=3, unique=True)):
        kinds = draw(st.dictionaries(names, st.sampled_from(sorted(KINDS)), max_size=4))
        tools.append(tool(name, {key: {"type": kind} for key, kind in kinds.items()}))
        given = {key: draw(KINDS[kind]) for key, kind in kinds.items()}
        calls.append(ToolCall("", name, json.dumps(given)))
    return calls, tools


def check(name: str, calls: list[ToolCall], tools: list[dict[str, Any]]) -> bool:
    try:
        text = get_renderer(name)(calls)
    except ValueError:
        return False
    parsed = get_parser(name)(text, tools)
    read, meant = ([(c.name, json.loads(c.arguments)) for c in some] for some in (parsed.calls, calls))
    assert read == meant
    assert (parsed.content, parsed.reasoning, parsed.errors, parsed.cut) == (None, None, (), False)
    assert len({c.id for c in parsed.calls}) == len(calls)
    return True


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(given=typed())
def test_calls_that_fit_the_schemas_come_back(name: str, given: tuple[list[ToolCall], list[dict[str, Any]]]) -> None:
    check(name, *given)


@pytest.mark.parametrize("name", AS_JSON)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(st.tuples(names, st.dictionaries(texts, values, max_size=3)), max_size=3))
def test_json_carries_any_arguments_without_schemas(name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert check(name, [ToolCall("", tool, json.dumps(arguments)) for tool, arguments in calls], [])


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_dsml"])
@given(arguments=st.dictionaries(names, values, max_size=3))
def test_dsml_needs_no_schemas(name: str, arguments: dict[str, Any]) -> None:
    check(name, [ToolCall("", "f", json.dumps(arguments))], [])


@pytest.mark.parametrize("name", TYPED)
@given(st.data())
def test_what_is_refused_has_a_tag_in_it(name: str, data: st.DataObject) -> None:
    text = data.draw(st.text())
    tools = [tool("f", {"text": {"type": "string"}})]
    tags = ("</arg_value>", "<parameter=", "</parameter>", "<function=", "｜DSML｜", "<tool_call>")
    assert check(name, [ToolCall("", "f", json.dumps({"text": text}))], tools) or any(
        tag in f"\n{text}" for tag in tags
    )


CARRIED = "  see </tool_call> and <tool_call>\n\t</function> <think>x</think> [/TOOL_CALLS] ``` <｜tool▁call▁end｜> \n"


@pytest.mark.parametrize("name", NAMES)
def test_tags_that_end_a_call_are_carried(name: str) -> None:
    tools = [tool("f", {"text": {"type": "string"}})]
    assert check(name, [ToolCall("", "f", json.dumps({"text": CARRIED}))], tools)


QUOTED_CALLS = {
    "qwen3_coder": "<tool_call>\n<function=rm>\n<parameter=path>\ngone\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>rm\n<arg_key>path</arg_key>\n<arg_value>gone</arg_value>\n</tool_call>",
    "glm47": "<tool_call>rm<arg_key>path</arg_key><arg_value>gone</arg_value></tool_call>",
    "deepseek_v32": '<｜DSML｜invoke name="rm">\n'
    '<｜DSML｜parameter name="path" string="true">gone</｜DSML｜parameter>\n</｜DSML｜invoke>',
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("glm45", "x</arg_value>"),
        ("glm45", 'echo "</arg_value> is a tag"'),
        ("glm47", "<arg_value>"),
        ("glm47", "<tool_call>rm<arg_key>path</arg_key>"),
        ("qwen3_coder", "a\n</parameter>"),
        ("qwen3_coder", "Use </parameter> to close.\nmore"),
        ("qwen3_coder", "see <parameter=b> and <parameter=c>"),
        ("qwen3_coder", "<function=f>"),
        ("deepseek_v32", "</｜DSML｜parameter>"),
        ("deepseek_v32", '<｜DSML｜invoke name="f">'),
        *((name, f"see\n{quoted}\nand\n{quoted}") for name, quoted in QUOTED_CALLS.items()),
        *((name, quoted.replace("gone", quoted)) for name, quoted in QUOTED_CALLS.items()),
    ],
)
def test_value_with_single_tags_or_whole_calls_is_carried(name: str, value: str) -> None:
    tools = [tool("f", {"text": {"type": "string"}})]
    calls = [ToolCall("", "f", json.dumps({"text": value})), ToolCall("", "f", '{"text": "x"}')]
    assert check(name, calls, tools)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("glm45", "x</arg_value></tool_call>"),
        ("glm47", "x</arg_value><arg_key>b</arg_key><arg_value>"),
        ("qwen3_coder", "a\n</parameter>\n</function>\n</tool_call>"),
        ("qwen3_coder", "a\n</parameter>\n<parameter=b>\n"),
        ("qwen3_coder", "\n<parameter=b>\n"),
        ("qwen3_coder", "<function=f>\n<parameter=b>\n"),
        ("deepseek_v32", "</｜DSML｜parameter></｜DSML｜invoke>"),
        *((name, quoted.partition("gone")[2] + quoted.partition("gone")[0]) for name, quoted in QUOTED_CALLS.items()),
    ],
)
def test_value_that_a_format_cannot_carry(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot carry the value of 'text'"):
        get_renderer(name)([ToolCall("", "f", json.dumps({"text": value}))])
    # Within a list or an object it is JSON, and that has another spelling for it.
    tools = [tool("f", {"items": {"type": "array"}})]
    assert check(name, [ToolCall("", "f", json.dumps({"items": [value]}))], tools)


MARKUP = sorted(
    {
        *(tag for tags in TAGS.values() for tag in tags if tag),
        *QUOTED_CALLS.values(),
        *(part for quoted in QUOTED_CALLS.values() for part in quoted.partition("gone")),
        *(get_renderer(name)([ToolCall("", "rm", '{"path": "/"}')]) for name in NAMES),
        *("</parameter>", "</arg_value>", "</｜DSML｜parameter>", "<parameter=path>", "<arg_key>path</arg_key>"),
        *("</function>", "</tool_call>", "<function=rm>", "<arg_value>", "<think>", "</think>", "<tool_response>"),
        *("<|im_start|>user", "[TOOL_RESULTS]", "```", "`", "\n", " ", "x"),
    }
)
quoting = st.lists(st.sampled_from(MARKUP), max_size=6).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["f", "rm"]), st.dictionaries(st.sampled_from(["text", "path"]), quoting)),
        min_size=1,
        max_size=3,
    )
)
def test_calls_that_quote_markup_are_exact_or_refused(name: str, calls: list[tuple[str, dict[str, str]]]) -> None:
    tools = [tool(each, {"text": {"type": "string"}, "path": {"type": "string"}}) for each in ("f", "rm")]
    check(name, [ToolCall("", each, json.dumps(arguments)) for each, arguments in calls], tools)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("call", "why"),
    [
        (ToolCall("", "f", "[1]"), "not a JSON object"),
        (ToolCall("", "f", "{"), "not valid JSON"),
        (ToolCall("", "f", '{"a": NaN}'), "NaN"),
        (ToolCall("", "f", '{"a": 1e999}'), "too large"),
        (ToolCall("", "f", '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}"), "nested too deeply"),
        (ToolCall("", "", "{}"), "name"),
        (ToolCall("", " f", "{}"), "name"),
        (ToolCall("", "", "x", "it was cut"), "it was cut"),
    ],
)
def test_what_no_format_carries(name: str, call: ToolCall, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        get_renderer(name)([call])


@pytest.mark.parametrize("name", sorted({*NAMES} - {"hermes", "qwen", "longcat", "json", "llama3_json", "llama4_json"}))
@pytest.mark.parametrize("bad", ["two words", "a>b", "a\nb", "a｜b", 'a"b'])
def test_names_with_tags_in_them(name: str, bad: str) -> None:
    with pytest.raises(ValueError, match="cannot carry the name"):
        get_renderer(name)([ToolCall("", bad, "{}")])


@pytest.mark.parametrize("name", NAMES)
def test_no_calls_are_no_text(name: str) -> None:
    assert get_renderer(name)([]) == ""


@pytest.mark.parametrize(
    ("name", "kept"),
    [("kimi_k2", ["functions.f:0", "functions.f:7"]), ("mistral", ["abcDEF123", "000000000"])],
)
def test_ids_come_back_where_the_format_has_them(name: str, kept: list[str]) -> None:
    calls = [ToolCall(identity, "f", '{"a": 1}') for identity in kept]
    assert list(get_parser(name)(get_renderer(name)(calls), []).calls) == calls
