"""The edge cases at which the parsers before these went wrong, each in every family that it can occur in."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_agent.parsers import get_parser
from hermes_exec.errors import ConfigError
from tests.unit.agent.parsers.families import AS_JSON, BARE, NAMES, TAGS, TOOLS, TYPED, call, made, parse

pytestmark = [pytest.mark.loops]

ANYWHERE = [name for name in NAMES if name not in BARE]
BAD_BLOCKS = {
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{oops}\n```<｜tool▁call▁end｜>",
    "deepseek_v31": "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{oops}<｜tool▁call▁end｜>",
    "deepseek_v32": '<｜DSML｜invoke name="a">oops</｜DSML｜invoke>',
    "glm45": "<tool_call>a\n<arg_key>path</arg_key>oops\n</tool_call>",
    "hermes": '<tool_call>{"name": oops}</tool_call>',
    "kimi_k2": "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{oops}<|tool_call_end|>",
    "longcat": '<longcat_tool_call>{"name": oops}</longcat_tool_call>',
    "mistral": "[TOOL_CALLS]a[ARGS]{oops}",
    "qwen3_coder": "<tool_call>\n<function=a>\noops\n</function>\n</tool_call>",
    "json": '\n```json\n{"name": "a", "arguments": oops}\n```\n',
    "llama3_json": '<|python_tag|>{"name": oops}',
}
BAD_BLOCKS |= {"glm47": BAD_BLOCKS["glm45"], "qwen": BAD_BLOCKS["hermes"], "llama4_json": BAD_BLOCKS["llama3_json"]}
BAD_BLOCKS |= {"deepseek_v3_1": BAD_BLOCKS["deepseek_v31"], "deepseek_dsml": BAD_BLOCKS["deepseek_v32"]}


@pytest.mark.parametrize("name", NAMES)
def test_bad_block_does_not_lose_the_others(name: str) -> None:
    parsed = parse(name, call(name, "a", count=1) + BAD_BLOCKS[name] + call(name, "b", count=2))
    assert made(parsed) == [("a", {"count": 1}), ("b", {"count": 2})]
    assert [(error.place, "oops" in error.text) for error in parsed.errors] == [(1, True)]
    assert "Write " in parsed.errors[0].error
    assert not parsed.cut
    assert parsed.content is None


@pytest.mark.parametrize("name", NAMES)
def test_broken_calls_stand_among_the_others_with_an_id_of_their_own(name: str) -> None:
    text = BAD_BLOCKS[name] + call(name, "a") + BAD_BLOCKS[name] + BAD_BLOCKS[name] + call(name, "b")
    calls = parse(name, text).tool_calls
    assert [made.name for made in calls] == ["", "a", "", "", "b"]
    assert [made.error is None for made in calls] == [False, True, False, False, True]
    assert len({made.id for made in calls}) == 5
    assert all(made.id for made in calls)


@pytest.mark.parametrize("name", NAMES)
def test_closing_tag_inside_a_string_does_not_end_the_call(name: str) -> None:
    content = f"see {TAGS[name].closing.strip()} and </tool_call> and <tool_call> and <think>x</think>, </function>"
    parsed = parse(name, call(name, "write_file", path="a.md", content=content))
    assert made(parsed) == [("write_file", {"path": "a.md", "content": content})]
    assert (parsed.content, parsed.reasoning, parsed.errors) == (None, None, ())


@pytest.mark.parametrize("name", sorted({*AS_JSON} - {*BARE, "mistral"}))
def test_closing_tag_inside_a_string_of_a_bad_block_does_not_end_it(name: str) -> None:
    tags = TAGS[name]
    bad = f'{tags.head}{{"c": "x{tags.closing}y"}},,{tags.closing}'
    parsed = parse(name, bad + call(name, "b"))
    assert made(parsed) == [("b", {})]
    assert [error.text.count("y") for error in parsed.errors] == [1]


@pytest.mark.parametrize("name", NAMES)
def test_call_cut_by_the_token_limit_is_an_error_that_the_model_sees(name: str) -> None:
    arguments = {"path": "a\u0000.md", "flag": True, "content": "some words", "limit": None, "count": 3}
    whole = call(name, "write_file", **arguments)
    if name == "json":
        whole = whole.strip().removesuffix("\n```")
    for length in range(len(whole)):
        parsed = parse(name, whole[:length])
        seen = [error.error for error in parsed.errors]
        assert made(parsed) in ([], [("write_file", arguments)]), length
        assert parsed.cut or not seen, length
        if parsed.cut:
            assert len(seen) == 1, length
            assert "cut off" in seen[0]
            assert parsed.content is None
        elif not parsed.calls:
            # So little of the opening tag, or of the object, that it may be anything.
            assert length < 17, whole[:length]
            assert not seen


@pytest.mark.parametrize("name", ANYWHERE)
def test_call_cut_after_others(name: str) -> None:
    whole = call(name, "write_file", path="a.md", content="some words")
    parsed = parse(name, "I look. " + call(name, "ls") + "Then " + whole[: whole.index("words")])
    assert made(parsed) == [("ls", {})]
    assert ((parsed.content or "").split(), parsed.cut, len(parsed.errors)) == (["I", "look.", "Then"], True, 1)


@pytest.mark.parametrize("name", ANYWHERE)
def test_begun_opening_tag_does_not_leak(name: str) -> None:
    opening = TAGS[name].opening
    for length in range(6, len(opening)):
        parsed = parse(name, "I look. " + opening[:length])
        assert (parsed.content, parsed.cut, len(parsed.errors)) == ("I look.", True, 1)


@pytest.mark.parametrize("name", NAMES)
def test_text_around_calls_is_kept(name: str) -> None:
    before = "" if name in ("llama3_json", "llama4_json") else "before "
    parsed = parse(name, before + call(name, "a") + " between " + call(name, "b") + " after")
    assert [made.name for made in parsed.calls] == ["a", "b"]
    assert (parsed.content or "").split() == [*before.split(), "between", "after"]


@pytest.mark.parametrize("name", NAMES)
def test_values_keep_their_space_and_their_type(name: str) -> None:
    arguments = {
        "path": "123",
        "content": '    indented\n\t"123" True {"a": 1}\n  \n',
        "command": '{"a": [1, 2]}',
        "count": 7,
        "ratio": 0.5,
        "flag": True,
        "tags": ["1", 2, None],
        "options": {"deep": {"x": "True"}},
        "limit": None,
    }
    assert made(parse(name, call(name, "write_file", **arguments))) == [("write_file", arguments)]
    for text in ("True", "null", "0", "1e5", "[]", '"quoted"', "'a'", " ", "", "\n", "\n\n x\n\n"):
        assert made(parse(name, call(name, "write_file", content=text))) == [("write_file", {"content": text})]


@pytest.mark.parametrize("name", AS_JSON)
def test_json_over_several_lines(name: str) -> None:
    tags = TAGS[name]
    inner = '{\n  "count": 1,\n  "tags": [\n    1\n  ]\n}'
    named = f'{{\n  "name": "a",\n  "arguments": {inner}\n}}'
    body = named if tags.head == tags.opening else inner
    parsed = parse(name, tags.head + body + tags.closing)
    assert made(parsed) == [("a", {"count": 1, "tags": [1]})]
    assert parsed.content is None


@pytest.mark.parametrize("name", ["hermes", "longcat", "mistral", "llama3_json", "json"])
def test_arguments_encoded_twice(name: str) -> None:
    text = json.dumps({"name": "a", "arguments": '{"count": 1, "path": "\\u00e9"}'})
    tags = TAGS[name]
    parsed = parse(name, tags.opening + (f"[{text}]" if name == "mistral" else text) + tags.closing)
    assert [made.arguments for made in parsed.calls] == ['{"count": 1, "path": "\\u00e9"}']


@pytest.mark.parametrize("name", ["mistral", "deepseek_v3", "deepseek_v31", "kimi_k2"])
def test_bare_arguments_encoded_twice(name: str) -> None:
    tags = TAGS[name]
    parsed = parse(name, tags.head + json.dumps('{"count": 1}') + tags.closing)
    assert [made.arguments for made in parsed.calls] == ['{"count": 1}']


@pytest.mark.parametrize("name", TYPED)
def test_object_encoded_twice_in_a_typed_value(name: str) -> None:
    text = call(name, "a", options={}).replace("{}", json.dumps('{"x": 1}'))
    assert made(parse(name, text)) == [("a", {"options": {"x": 1}})]


@pytest.mark.parametrize("given", ['"hello"', "[1]", "5", "true", '"[1]"'])
def test_arguments_that_are_no_object_are_an_error(given: str) -> None:
    parsed = parse("hermes", f'<tool_call>{{"name": "a", "arguments": {given}}}</tool_call>')
    assert parsed.calls == ()
    assert "arguments are not a JSON object" in parsed.errors[0].error


@pytest.mark.parametrize("given", ["null", '""', "{}"])
def test_no_arguments(given: str) -> None:
    parsed = parse("hermes", f'<tool_call>{{"name": "a", "arguments": {given}}}</tool_call>')
    assert [made.arguments for made in parsed.calls] == ["{}"]


@pytest.mark.parametrize("name", AS_JSON)
@pytest.mark.parametrize(
    "value", ["[" * 99999, "1" * 9999, "NaN", "-Infinity", "1e999", '{"x":' * 5000, '"\\ud800', "nul"]
)
def test_what_json_cannot_hold_is_a_broken_call(name: str, value: str) -> None:
    tags = TAGS[name]
    bare = name in ("mistral", "kimi_k2") or name.startswith("deepseek")
    body = f'{{"count": {value}}}' if bare else f'{{"name": "a", "arguments": {{"count": {value}}}}}'
    parsed = parse(name, tags.head + body + tags.closing)
    assert parsed.calls == ()
    assert len(parsed.errors) == 1


@pytest.mark.parametrize("name", NAMES)
def test_half_of_a_surrogate_pair_can_be_sent(name: str) -> None:
    parsed = parse(name, call(name, "a", content="x\ud800y", options={"z": "\udc00"}))
    assert made(parsed) == [("a", {"content": "x\ud800y", "options": {"z": "\udc00"}})]
    parsed.calls[0].arguments.encode("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_the_same_for_the_same_text_and_differ_within_it(name: str) -> None:
    text = call(name, "a") + call(name, "a")
    ids = [made.id for made in parse(name, text).calls]
    assert ids == [made.id for made in parse(name, text).calls]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("name", ["hermes", "longcat", "json"])
@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "```json {}```", "\n ```json\n{}\n```\n"])
def test_json_in_a_fence(name: str, fence: str) -> None:
    body = fence.replace("{}", '{"name": "a", "arguments": {}}')
    text = body if name == "json" else TAGS[name].opening + body + TAGS[name].closing
    assert made(parse(name, text)) == [("a", {})]


def test_glm_needs_no_line_breaks() -> None:
    text = "<tool_call>a<arg_key>count</arg_key><arg_value>1</arg_value></tool_call>"
    assert made(parse("glm45", text)) == made(parse("glm47", text)) == [("a", {"count": 1})]


@pytest.mark.parametrize("name", TYPED)
def test_value_that_is_never_closed_may_hold_what_follows(name: str) -> None:
    closing = {"deepseek_v32": "</｜DSML｜parameter>", "qwen3_coder": "</parameter>"}.get(name, "</arg_value>")
    bad = call(name, "a", content="x").replace(closing, "")
    for text in (bad, bad + "\n" + call(name, "rm", content="y")):
        parsed = parse(name, text)
        assert (parsed.calls, len(parsed.errors), parsed.content) == ((), 1, None)
        assert parsed.cut == (name == "deepseek_v32")


@pytest.mark.parametrize("text", ['{"name": "Ada", "age": 3}', '{"a": 1}', "[1, 2]", '[{"name": "Ada"}]', '{"name": "'])
@pytest.mark.parametrize("name", BARE)
def test_json_that_is_an_answer_is_no_call(name: str, text: str) -> None:
    parsed = parse(name, text)
    if not parsed.cut:
        assert (parsed.content, parsed.tool_calls) == (text, ())
    else:
        assert text == '{"name": "'


@pytest.mark.parametrize("name", BARE)
def test_object_in_prose_is_no_call(name: str) -> None:
    text = 'I would write {"name": "rm", "arguments": {"path": "/"}} but I will not.'
    parsed = parse(name, text)
    assert (parsed.content, parsed.tool_calls) == (text, ())


@pytest.mark.parametrize("name", BARE)
def test_bare_object_for_an_unknown_tool_is_no_call(name: str) -> None:
    text = '{"name": "unknown", "arguments": {}}'
    assert parse(name, text).content == text
    assert made(get_parser(name)(text, [])) == [("unknown", {})]
    assert made(parse("llama3_json", f"<|python_tag|>{text}")) == [("unknown", {})]


def test_code_fence_with_other_code_is_content() -> None:
    text = '```python\nprint({"name": "rm"})\n```\nand\n```json\n{"a": 1}\n```\n{"name": "rm", "arguments": {}}\nend'
    parsed = parse("json", text)
    assert (parsed.content, parsed.tool_calls) == (text, ())


def test_bad_element_of_a_list_does_not_lose_the_others() -> None:
    inner = (
        '[{"name": "a", "arguments": {}}, {"name": oops, "x": "]},"}, 5, '
        '{"name": "b", "arguments": {}} junk, {"name": "b", "parameters": {"count": 1}}]'
    )
    for name, text in (("mistral", "[TOOL_CALLS] " + inner), ("json", inner)):
        parsed = parse(name, text + " after")
        assert made(parsed) == [("a", {}), ("b", {"count": 1})]
        assert [error.place for error in parsed.errors] == [1, 2, 3]
        assert parsed.content == "after"


@pytest.mark.parametrize("name", ["deepseek_v31", "kimi_k2", "deepseek_v32"])
def test_section_without_a_call_is_an_error(name: str) -> None:
    opening = TAGS[name].opening
    closing = TAGS[name].closing.rpartition("<")
    parsed = parse(name, f"{opening}a{{}}{closing[1]}{closing[2]}")
    assert (parsed.calls, len(parsed.errors), parsed.content, parsed.cut) == ((), 1, None, False)
    parsed = parse(name, f"Let me look.{opening}get_we")
    assert (parsed.calls, len(parsed.errors), parsed.content, parsed.cut) == ((), 1, "Let me look.", True)


def test_mistral_tag_written_twice_is_no_list() -> None:
    parsed = parse("mistral", "[TOOL_CALLS][TOOL_CALLS]a[ARGS]{}")
    assert (made(parsed), len(parsed.errors), parsed.content) == ([("a", {})], 1, None)
    parsed = parse("mistral", '[TOOL_CALLS][ARGS]{"count": 1}[TOOL_CALLS]a{}')
    assert (made(parsed), len(parsed.errors), parsed.content) == ([("a", {})], 1, None)


def test_kimi_id_that_is_written_twice_is_kept_once() -> None:
    one = "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    first, second = parse("kimi_k2", one + one).calls
    assert first.id == "functions.a:0"
    assert len(second.id) == 9


def test_qwen3_coder_parameter_without_closing_tag() -> None:
    text = (
        "<tool_call>\n<function=a>\n<parameter=path>\nx\n<parameter=count>\n1\n</parameter>\n</function>\n</tool_call>"
    )
    assert made(parse("qwen3_coder", text)) == [("a", {"path": "x", "count": 1})]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "123", "123"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string"}, "null", "null"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "42", "42"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["ls"]', ["ls"]),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '{"a": 1}', '{"a": 1}'),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "[1]", [1]),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "null", None),
        ({"enum": ["a", "1"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "7"}, "7", "7"),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "integer"}, '"7"', 7),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
        ({"type": "bool"}, "true", True),
        ({"allOf": [{"type": "integer"}]}, "3", 3),
    ],
)
@pytest.mark.parametrize("name", ["glm45", "qwen3_coder"])
def test_types_come_from_the_schema(name: str, schema: dict[str, object], text: str, value: object) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": schema}}}}]
    written = {
        "glm45": f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>",
    }
    assert made(get_parser(name)(written[name], tools)) == [("f", {"x": value})]


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize(
    "tools",
    [[{}], [{"function": None}], [{"function": {"name": 3}}], [{"name": "f", "parameters": {"properties": []}}], [3]],
)
def test_strange_schemas_do_no_harm(name: str, tools: list[object]) -> None:
    parse_with = get_parser(name)
    assert len(parse_with(call(name, "f", x="a b"), tools).calls) == 1  # type: ignore[arg-type]


def test_unknown_parser_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        get_parser("hermess")


OTHER_PIECES = ["<think>", "</think>", "{", "}", "[", "]", '"', "\\", "\n", "x", ",", "<arg_value>", "```"]
PIECES = [
    *sorted(
        {
            *(tag for tags in TAGS.values() for tag in tags),
            *BAD_BLOCKS.values(),
            *(text for name in NAMES for text in (call(name, "a", content="x"), call(name, "b"))),
        }
    ),
    *OTHER_PIECES,
    '{"name": "a", "arguments": {',
]
PIECES += [tag[:-2] for tag in PIECES if len(tag) > 3]


@pytest.mark.parametrize("name", NAMES)
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)))
def test_no_text_makes_a_parser_raise(name: str, text: str) -> None:
    parsed = parse(name, text)
    assert all(made.name and isinstance(json.loads(made.arguments), dict) for made in parsed.calls)
    assert all(error.error for error in parsed.errors)
    assert all(one.place < two.place for one, two in pairwise(parsed.errors))
    assert (
        len({made.id for made in parsed.tool_calls}) == len(parsed.tool_calls) == len(parsed.calls) + len(parsed.errors)
    )
    assert parsed.content is None or parsed.content.strip() == parsed.content != ""
    assert not parsed.cut or parsed.errors
    assert get_parser(name)(text, TOOLS) == parsed
