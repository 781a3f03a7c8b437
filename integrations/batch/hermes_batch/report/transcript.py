"""The conversation of one record as HTML: what was asked, thought, called and answered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_agent.messages import ToolCall
from hermes_agent.parsers import get_parser
from hermes_batch.report.html import Markup, element, join

_LONGEST = 20_000
_LONG = {"snapshot": "Snapshot", "changes": "Changes"}
"""Fields of results that are shown as they are, with their titles."""
_LONG_LINES = 12
"""Code, output and snapshots above this are folded."""
_RESPONSE = re.compile(r"<tool_response>\n(.*)\n</tool_response>")


def transcript(record: Mapping[str, Any], images: Mapping[str, Sequence[Markup]]) -> Markup:
    """Every turn of the record but the system prompt, which stands folded at the top, then check, errors and facts.
    `images` are those of results, by the id of their call.
    """
    turns = [turn for turn in record["conversations"] if isinstance(turn, dict)]
    return element(
        "div",
        *(_turn(turn, images) for turn in turns),
        _check(record),
        _errors(record),
        _facts(record),
        cls="transcript",
    )


def _turn(turn: Mapping[str, Any], images: Mapping[str, Sequence[Markup]]) -> Markup:
    said, value = str(turn.get("from", "")), str(turn.get("value", ""))
    if said == "system":
        return _folded("System prompt", value)
    if said == "gpt":
        parsed = get_parser("hermes")(value, ())
        thought = _folded("Thinking", parsed.reasoning) if parsed.reasoning else Markup("")
        text = element("p", _cut(parsed.content), cls="said") if parsed.content else Markup("")
        return element(
            "div", element("h4", "Model"), thought, text, *(_call(call) for call in parsed.tool_calls), cls="turn model"
        )
    if said == "tool":
        responses = [_response(text, images) for text in _RESPONSE.findall(value)] or [_block(value)]
        return element("div", element("h4", "Result"), *responses, cls="turn result")
    return element(
        "div",
        element("h4", "Task" if said == "human" else said),
        element("p", _cut(value), cls="said"),
        cls="turn task",
    )


def _call(call: ToolCall) -> Markup:
    if call.error is not None:
        return element("div", element("span", "not understood", cls="name bad"), _block(call.arguments), cls="call")
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    if isinstance(arguments, dict) and set(arguments) == {"command"} and isinstance(arguments["command"], str):
        shown = _block(f"$ {arguments['command']}")
    elif isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
        others = {name: value for name, value in arguments.items() if name != "code"}
        shown = join(_long("Code", arguments["code"]), _block(_plain(others)) if others else Markup(""))
    elif isinstance(arguments, dict):
        rows = (
            element("tr", element("th", str(name)), element("td", _block(_plain(value))))
            for name, value in arguments.items()
        )
        shown = element("table", *rows, cls="arguments")
    else:
        shown = _block(_plain(arguments))
    return element("div", element("span", call.name, cls="name"), shown, cls="call")


def _response(text: str, images: Mapping[str, Sequence[Markup]]) -> Markup:
    try:
        response = json.loads(text)
        content = response.get("content")
    except (ValueError, AttributeError):
        return _block(text)
    pictures = images.get(str(response.get("tool_call_id")), ())
    if not isinstance(content, dict):
        return join(_block(_plain(content)), *pictures)
    code = content.get("exit_code")
    marks = [element("span", f"exit {code}", cls="exit" if code == 0 else "exit bad")] if code is not None else []
    if content.get("error"):
        marks.append(element("span", _cut(_plain(content["error"])), cls="error"))
    output = content.get("output")
    said = []
    if isinstance(output, str):
        said = [_block_or_long("Output", output) if output else element("span", "no output", cls="quiet")]
    shown = {name: value for name, value in content.items() if name in _LONG and isinstance(value, str)}
    left_out = {*shown, "error", "error_kind", "exit_code", *(["output"] if said else [])}
    rest = {name: value for name, value in content.items() if name not in left_out and value is not None}
    facts = _block_or_long("Result", json.dumps(rest, ensure_ascii=False, indent=2)) if rest else Markup("")
    pages = (_long(_LONG[name], value) for name, value in shown.items())
    return element("div", *said, facts, *pages, *marks, *pictures, cls="response")


def _block_or_long(title: str, text: str) -> Markup:
    return _block(text) if text.count("\n") < _LONG_LINES else _long(title, text)


def _check(record: Mapping[str, Any]) -> Markup:
    check = record.get("check") or {}
    if record.get("solved") is None and check.get("exit_code") is None:
        return Markup("")
    ended = "was not run" if check.get("exit_code") is None else f"ended with {check['exit_code']}"
    line = "The check " + (f"{ended} (timed out)" if check.get("timed_out") else ended)
    output = _block(str(check["output"])) if check.get("output") else Markup("")
    cls = "check good" if record.get("solved") else "check bad"
    return element(
        "div", element("b", "Solved. " if record.get("solved") else "Not solved. "), line + ".", output, cls=cls
    )


def _errors(record: Mapping[str, Any]) -> Markup:
    items = [error for error in record.get("errors") or () if isinstance(error, dict)]
    if not items:
        return Markup("")
    rows = (
        element(
            "li",
            element("b", f"turn {error.get('turn')}, {error.get('where')}: {error.get('kind')} "),
            _cut(str(error.get("message", ""))),
        )
        for error in items
    )
    return element("div", element("h4", "Errors"), element("ul", *rows), cls="errors")


def _facts(record: Mapping[str, Any]) -> Markup:
    facts = [
        ("ended by", record.get("finish")),
        ("cause", record.get("cause")),
        ("trainable", "yes" if record.get("trainable") else "no"),
        ("turns", record.get("turns")),
        ("tokens", f"{record.get('prompt_tokens', 0):,} read, {record.get('completion_tokens', 0):,} written"),
        ("isolation", record.get("isolation") or "no slot"),
        ("box", record.get("sandbox") or "none"),
    ]
    return element("dl", *(join(element("dt", name), element("dd", str(value))) for name, value in facts))


def _long(title: str, text: str) -> Markup:
    """Something that may be many lines: folded when it is."""
    lines = text.count("\n") + 1
    opened = {} if lines > _LONG_LINES else {"open": ""}
    named = f"{title}, {lines} line{'' if lines == 1 else 's'}"
    return element("details", element("summary", named), _block(text), cls="folded", **opened)


def _folded(title: str, text: str) -> Markup:
    return element("details", element("summary", title), _block(text), cls="folded")


def _block(text: str) -> Markup:
    return element("pre", _cut(text))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    left_out = len(text) - _LONGEST
    return (
        text
        if left_out <= 0
        else f"{text[: _LONGEST * 2 // 5]}\n… {left_out:,} characters left out …\n{text[-_LONGEST * 3 // 5 :]}"
    )
