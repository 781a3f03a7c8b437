"""Nothing runs that is quoted: inside of a broken call, or in code of an answer."""

from __future__ import annotations

import json

import pytest

from tests.unit.agent.parsers.families import BARE, NAMES, TAGS, TYPED, call, made, parse

pytestmark = [pytest.mark.loops]

TAGGED = [name for name in NAMES if name not in BARE]
NESTING = [name for name in TAGGED if name not in (*TYPED, "deepseek_dsml")]
"""Families with tags around JSON."""


def inner(name: str) -> str:
    """A call as it stands after another one, without the section that may be around all of them."""
    text = call(name, "rm", path="/")
    if name.startswith("deepseek_v3") and name not in TYPED:
        return text.removeprefix("<｜tool▁calls▁begin｜>").removesuffix("<｜tool▁calls▁end｜>")
    return text.removeprefix("<|tool_calls_section_begin|>").removesuffix("<|tool_calls_section_end|>")


def broken(name: str, quote: str, quoted: str) -> str:
    """A call that is no JSON, because of its quotes, with a call in it."""
    arguments = f"{{{quote}content{quote}: {quote}It says {quoted} and {quote}so{quote} on{quote}}}"
    tags = TAGS[name]
    if tags.head != tags.opening or name == "mistral":
        return tags.head + arguments + tags.closing
    body = f"{{{quote}name{quote}: {quote}write_file{quote}, {quote}arguments{quote}: {arguments}}}"
    return tags.head + body + tags.closing


@pytest.mark.parametrize("name", [*NESTING, "llama3_json"])
@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("before", ["", "I write it. "])
def test_call_inside_of_a_broken_one_does_not_run(name: str, quote: str, before: str) -> None:
    if name == "llama3_json" and before:
        before = ""
    parsed = parse(name, before + broken(name, quote, inner(name)))
    assert (parsed.calls, len(parsed.errors)) == ((), 1)
    assert "rm" in parsed.errors[0].text


@pytest.mark.parametrize("name", [name for name in NESTING if name != "mistral"])
def test_closing_tag_and_call_inside_of_a_broken_one_do_not_run(name: str) -> None:
    closing = TAGS[name].closing.partition("<｜tool▁calls▁end｜>")[0].partition("<|tool_calls_section_end|>")[0]
    parsed = parse(name, broken(name, "'", f"{closing} and {inner(name)}"))
    assert (parsed.calls, len(parsed.errors)) == ((), 1)


@pytest.mark.parametrize("name", NESTING)
def test_call_after_a_broken_one_runs(name: str) -> None:
    parsed = parse(name, broken(name, "'", "nothing") + call(name, "ls"))
    assert (made(parsed), len(parsed.errors)) == ([("ls", {})], 1)


@pytest.mark.parametrize("name", [*TAGGED, "llama3_json", "json"])
@pytest.mark.parametrize("quote", ['"', "'"])
def test_no_misspelling_of_a_call_runs_what_it_quotes(name: str, quote: str) -> None:
    quoted = f"It says {call(name, 'rm', path='/')} and {call(name, 'rm', path='/')} so."
    before, after = call(name, "write_file", content="@", path="a.md").replace('"', quote).split("@")
    opening = len(TAGS[name].opening) + (name == "json")
    # Without closing tags a call ends where its brackets are closed: `{}` is a whole one.
    others = ["", "x", '"', "'", "{", "<", ">", "/", " ", "\n", *([] if name in (*BARE, "mistral") else ["}", "]"])]
    for other in others:
        heads = [before[:at] + other + before[at + 1 :] for at in range(opening, len(before))]
        tails = [after[:at] + other + after[at:] for at in range(len(after))]
        for text in (*(head + quoted + after for head in heads), *(before + quoted + tail for tail in tails)):
            assert "rm" not in [each.name for each in parse(name, text).calls], text


@pytest.mark.parametrize("name", NESTING)
def test_closing_tag_in_a_later_call_leaves_the_ones_before_alone(name: str) -> None:
    content = f"ends with {TAGS[name].closing}"
    text = call(name, "ls") + call(name, "write_file", content=content) + call(name, "ls")
    assert made(parse(name, text)) == [("ls", {}), ("write_file", {"content": content}), ("ls", {})]


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("title", ["# Calls", "After </think>"])
def test_value_that_quotes_a_call_is_written(name: str, title: str) -> None:
    content = f"{title}\n\n{call(name, 'rm', path='/')}\n\nand\n{call(name, 'terminal', command='rm -rf build')}\n"
    text = call(name, "write_file", content=content, path="a.md")
    assert made(parse(name, text)) == [("write_file", {"content": content, "path": "a.md"})]
    for length in range(len(text)):
        parsed = parse(name, text[:length])
        assert all(each.name == "write_file" for each in parsed.calls), text[:length]
        assert made(parsed) in ([], [("write_file", {"content": content, "path": "a.md"})])


@pytest.mark.parametrize("name", TYPED)
def test_tags_that_do_not_pair_up_run_nothing(name: str) -> None:
    whole = call(name, "write_file", content="x")
    at = whole.index("x")
    # The value spells the end of its call, and a call: only the tags at the end say that all this is one value.
    quoted = whole[at + 1 :] + call(name, "rm", path="/")
    parsed = parse(name, whole[: at + 1] + quoted + whole[at + 1 :])
    assert (parsed.calls, len(parsed.errors)) == ((), 1)


@pytest.mark.parametrize("name", TYPED)
def test_parameter_that_is_there_twice_is_refused(name: str) -> None:
    text = call(name, "a", path="/tmp/x")
    head = {"qwen3_coder": "<parameter=", "deepseek_v32": "<｜DSML｜parameter"}.get(name, "<arg_key>")
    tail = {"qwen3_coder": "</parameter>\n", "deepseek_v32": "</｜DSML｜parameter>\n"}.get(name, "</arg_value>")
    start = text.index(head)
    end = text.index(tail) + len(tail)
    again = text[start:end].replace("/tmp/x", "/")
    parsed = parse(name, text[:end] + again + text[end:])
    assert parsed.calls == ()
    assert "'path' twice" in parsed.errors[0].error


@pytest.mark.parametrize("name", TAGGED)
def test_call_in_a_fence_of_prose_is_text(name: str) -> None:
    quoted = call(name, "rm", path="/")
    text = f"A call looks like this:\n\n```xml\n{quoted}\n```\n\nDo not make it."
    parsed = parse(name, text)
    assert (parsed.tool_calls, parsed.content, parsed.problems) == ((), text, ())


@pytest.mark.parametrize("name", TAGGED)
def test_call_after_a_fence_runs(name: str) -> None:
    quoted = call(name, "rm", path="/")
    parsed = parse(name, f"So:\n```\n{quoted}\n```\nI make another one.\n{call(name, 'ls')}")
    assert (made(parsed), parsed.problems) == ([("ls", {})], ())
    assert quoted in (parsed.content or "")


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("end", ["\n```", "\n```\n", "", "\n"])
def test_call_in_a_fence_that_ends_the_answer_is_text_and_the_model_is_told(name: str, end: str) -> None:
    text = f"I look.\n```\n{call(name, 'ls')}{end}"
    parsed = parse(name, text)
    assert (parsed.tool_calls, parsed.content) == ((), text.strip())
    (problem,) = parsed.problems
    assert (problem.kind, problem.trainable) == ("fenced_call", True)
    assert "without the fence" in (problem.notice or "")
    assert parsed.completion(text, "length").problems == ()


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize(
    "fence", ["```\n{}\n```", "```xml\n{}\n```\n", "~~~\n{}\n~~~", "```tool_call\n{}", "```\n\n{}\n"]
)
@pytest.mark.parametrize("thinking", ["", "<think>I look.</think>\n\n"])
def test_fence_that_is_the_whole_answer_is_a_call(name: str, fence: str, thinking: str) -> None:
    calls = call(name, "a", path="x") + "\n" + call(name, "b")
    parsed = parse(name, thinking + fence.format(calls))
    assert (made(parsed), parsed.content) == ([("a", {"path": "x"}), ("b", {})], None)
    assert (parsed.errors, parsed.problems) == ((), ())


@pytest.mark.parametrize("name", TAGGED)
def test_fence_before_prose_is_text(name: str) -> None:
    text = f"```\n{call(name, 'rm')}\n```\nThis is how a call looks."
    parsed = parse(name, text)
    assert (parsed.tool_calls, parsed.content) == ((), text)


@pytest.mark.parametrize("name", TAGGED)
def test_fence_in_a_fence_and_in_arguments(name: str) -> None:
    quoted = call(name, "rm")
    text = f"So:\n````markdown\n```\n{quoted}\n```\n{quoted}\n````\nThat is all."
    assert parse(name, text).tool_calls == ()
    content = f"```\n{quoted}\n```\n```"
    parsed = parse(name, f"I write it.\n{call(name, 'write_file', content=content)}\n{call(name, 'ls')}")
    assert made(parsed) == [("write_file", {"content": content}), ("ls", {})]


@pytest.mark.parametrize("name", ["hermes", "longcat", "kimi_k2", "mistral"])
def test_call_in_inline_code_is_text(name: str) -> None:
    quoted = call(name, "rm").replace("\n", "")
    text = f"Write `{quoted}` for it, with `{TAGS[name].opening}`."
    parsed = parse(name, text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    parsed = parse(name, f"I use `ls`.{call(name, 'ls', path='`date`')}")
    assert made(parsed) == [("ls", {"path": "`date`"})]


def test_inline_code_at_the_begin_of_a_line_opens_no_fence() -> None:
    parsed = parse("hermes", f"```ls``` it is: {call('hermes', 'ls')}")
    assert (made(parsed), parsed.content) == ([("ls", {})], "```ls``` it is:")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "rm", "arguments": {"path": "/tmp/a", "path": "/"}}',
        '{"name": "rm", "name": "ls", "arguments": {}}',
        '{"name": "rm", "arguments": {"options": {"x": 1, "x": 2}}}',
        '{"name": "rm", "arguments": {}, "arguments": {"path": "/"}}',
    ],
)
@pytest.mark.parametrize("name", ["hermes", "longcat", "llama3_json", "mistral", "json"])
def test_key_that_is_there_twice_is_refused(name: str, text: str) -> None:
    tags = TAGS[name]
    parsed = parse(name, tags.opening + text + tags.closing)
    assert (parsed.calls, len(parsed.errors)) == ((), 1)
    assert "twice" in parsed.errors[0].error


@pytest.mark.parametrize("name", ["mistral", "deepseek_v3", "deepseek_v31", "kimi_k2"])
def test_argument_that_is_there_twice_is_refused(name: str) -> None:
    tags = TAGS[name]
    parsed = parse(name, tags.head + '{"path": "/tmp/a", "path": "/"}' + tags.closing)
    assert parsed.calls == ()
    assert "'path' is there twice" in parsed.errors[0].error


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ('{"name": "rm", "path": "/tmp/x"}', "\"arguments\" is missing; put 'path' into it"),
        ('{"name": "rm", "arguments": {}, "path": "/"}', "'path' is beside the name"),
        ('{"name": "rm", "arguments": {}, "parameters": {}}', 'both "arguments" and "parameters"'),
        ('[{"name": "rm", "arguments": {}}]', "it is a list"),
        ('{"name": "rm", "arguments": "{\\"a\\": 1, \\"a\\": 2}"}', "'a' is there twice"),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "longcat"])
def test_keys_beside_name_and_arguments_are_refused(name: str, given: str, why: str) -> None:
    tags = TAGS[name]
    parsed = parse(name, tags.opening + given + tags.closing)
    assert parsed.calls == ()
    assert why in parsed.errors[0].error


@pytest.mark.parametrize("given", ['{"type": "function", "name": "a", "arguments": {}}', '{"name": "a", "id": "x"}'])
def test_keys_that_belong_to_a_call_are_accepted(given: str) -> None:
    assert made(parse("hermes", f"<tool_call>{given}</tool_call>")) == [("a", {})]


@pytest.mark.parametrize("identity", ["ls", "functions.ls", "ls:0", "functions.ls:3"])
@pytest.mark.parametrize("section", ["tool_calls_section", "tool_call_section"])
def test_kimi_section_in_the_singular_and_ids_without_a_number(identity: str, section: str) -> None:
    arguments = json.dumps({"path": "x"})
    text = (
        f"<|{section}_begin|><|tool_call_begin|>{identity}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        f"<|{section}_end|>"
    )
    parsed = parse("kimi_k2", text)
    assert (made(parsed), parsed.content, parsed.errors) == ([("ls", {"path": "x"})], None, ())
    assert parsed.calls[0].id
