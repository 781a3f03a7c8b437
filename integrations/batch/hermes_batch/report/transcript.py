"""The conversation of one record as HTML: prompts, reasoning, calls and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from hermes_agent.messages import Message, ToolCall, calls_of, image_parts, message_text
from hermes_batch.columns import decode_list
from hermes_batch.report.html import Markup, element, escape, join

_MAX_CHARS = 20_000
_TITLES = {"content": "File"}
"""Titles of fields of results. Others have the name of the field."""
_FOLD_LINES = 12
"""Code, output and snapshots with more lines are folded."""


def transcript(record: Mapping[str, Any], images: Mapping[str, Sequence[Markup]]) -> Markup:
    """Return the tools (folded, at the top), every message, then check, errors and facts. `images` holds the images of
    results by the id of their call, and images of the prompt by their path.
    """
    messages = [message for message in decode_list(record, "messages") if isinstance(message, dict)]
    tools = decode_list(record, "tools")
    return element(
        "div",
        *([_fold("Tools", json.dumps(tools, ensure_ascii=False, indent=2))] if tools else []),
        *(_turn(role, list(turn), images) for role, turn in groupby(messages, lambda message: message.get("role"))),
        _program(record),
        _check(record),
        _errors(record),
        _facts(record),
        cls="transcript",
    )


def _turn(role: object, messages: Sequence[Message], images: Mapping[str, Sequence[Markup]]) -> Markup:
    """Return consecutive messages of one role."""
    if role == "assistant":
        return join(*map(_model_turn, messages))
    if role == "tool":
        responses = [_response(message, images) for message in messages]
        return element("div", element("h4", "Result"), *responses, cls="turn result")
    if role == "system":
        return join(*(_fold("System prompt", message_text(message)) for message in messages))
    title = "Task" if role == "user" else str(role)
    return join(*(_task_turn(title, message, images) for message in messages))


def _model_turn(message: Message) -> Markup:
    reasoning, content = str(message.get("reasoning_content") or ""), message_text(message)
    thought = _fold("Thinking", reasoning) if reasoning.strip() else Markup("")
    text = element("p", _cut(content), cls="said") if content.strip() else Markup("")
    return element("div", element("h4", "Model"), thought, text, *map(_call, calls_of(message)), cls="turn model")


def _task_turn(title: str, message: Message, images: Mapping[str, Sequence[Markup]]) -> Markup:
    addresses = [str(part["image_url"].get("url")) for part in image_parts(message)]
    pictures = [picture for address in addresses for picture in images.get(address, [escape(address)])]
    return element(
        "div", element("h4", title), element("p", _cut(message_text(message)), cls="said"), *pictures, cls="turn task"
    )


def _call(call: ToolCall) -> Markup:
    if not call.name:
        return element("div", element("span", "not understood", cls="name bad"), _block(call.arguments), cls="call")
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    if isinstance(arguments, dict) and set(arguments) == {"command"} and isinstance(arguments["command"], str):
        body = _block(f"$ {arguments['command']}")
    elif isinstance(arguments, dict) and isinstance(arguments.get("code"), str):
        others = {name: value for name, value in arguments.items() if name != "code"}
        body = join(_foldable("Code", arguments["code"]), _block(_plain(others)) if others else Markup(""))
    elif isinstance(arguments, dict):
        body = _value(arguments)
    else:
        body = _block(_plain(arguments))
    return element("div", element("span", call.name, cls="name"), body, cls="call")


def _response(message: Message, images: Mapping[str, Sequence[Markup]]) -> Markup:
    text = message_text(message)
    pictures = images.get(str(message.get("tool_call_id")), ())
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    if not isinstance(content, dict):
        return join(_block(text), *pictures)
    code = content.get("exit_code")
    marks = [element("span", f"exit {code}", cls="exit" if code == 0 else "exit bad")] if code is not None else []
    if content.get("error"):
        marks.append(element("span", _cut(_plain(content["error"])), cls="error"))
    output = content.get("output")
    blocks = []
    if isinstance(output, str):
        blocks = [_block_or_long("Output", output) if output else element("span", "no output", cls="quiet")]
    long_fields = {
        name: value
        for name, value in content.items()
        if isinstance(value, str) and name not in ("output", "error") and _is_text(name, value)
    }
    left_out = {*long_fields, "error", "error_kind", "exit_code", *(["output"] if blocks else [])}
    rest = {name: value for name, value in content.items() if name not in left_out and value is not None}
    facts = _facts_or_long(rest) if rest else Markup("")
    pages = (_foldable(_TITLES.get(name, name.capitalize()), value) for name, value in long_fields.items())
    return element("div", *blocks, facts, *pages, *marks, *pictures, cls="response")


def _is_text(name: str, value: str) -> bool:
    """Return whether a field of a result is shown as a text of its own: files, differences, snapshots."""
    return "\n" in value or name in ("content", "diff", "snapshot", "changes")


def _facts_or_long(facts: Mapping[str, Any]) -> Markup:
    """Return fields of a result as JSON, or as a table if they have texts with several lines."""
    text = json.dumps(facts, ensure_ascii=False, indent=2)
    return _value(facts) if "\\n" in text else _block_or_long("Result", text)


def _value(value: object) -> Markup:
    """Return a value of JSON. Texts in it are shown with their lines."""
    if isinstance(value, dict) and value:
        rows = (element("tr", element("th", str(name)), element("td", _value(part))) for name, part in value.items())
        return element("table", *rows, cls="arguments")
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        return join(*map(_value, value))
    return _block(_plain(value))


def _block_or_long(title: str, text: str) -> Markup:
    return _block(text) if text.count("\n") < _FOLD_LINES else _foldable(title, text)


def _program(record: Mapping[str, Any]) -> Markup:
    """Return the end of a program: its exit code and its output."""
    code, output = record.get("program_exit_code"), str(record.get("program_output") or "").rstrip("\n")
    if not isinstance(code, int) or code < 0:
        return Markup("")
    line = element("p", f"The program ended with exit code {code}" + (":" if output else " and printed nothing."))
    shown = _foldable("Output", output) if output else Markup("")
    return element("div", element("h4", "Program"), line, shown, cls="turn")


def _check(record: Mapping[str, Any]) -> Markup:
    check, solved = record.get("check") or {}, record.get("solved") == "solved"
    checked = check.get("exit_code", -1) >= 0
    if not checked and record.get("solved") not in ("solved", "unsolved"):
        return Markup("")
    ended = f"ended with {check['exit_code']}" if checked else "was not run"
    line = "The check " + (f"{ended} (timed out)" if check.get("timed_out") else ended)
    output = _block(str(check["output"])) if check.get("output") else Markup("")
    verdict = element("b", "Solved. " if solved else "Not solved. ")
    return element("div", verdict, line + ".", output, cls="check good" if solved else "check bad")


def _errors(record: Mapping[str, Any]) -> Markup:
    items = [error for error in decode_list(record, "errors") if isinstance(error, dict)]
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
        *([("program", record["program"])] if record.get("program") else []),
        ("ended by", record.get("finish")),
        ("cause", record.get("cause")),
        ("trainable", "yes" if record.get("trainable") else "no"),
        ("exportable", "yes" if record.get("exportable") else f"no: {record.get('export_problem', '')}"),
        ("turns", record.get("turns")),
        ("tokens", f"{record.get('prompt_tokens', 0):,} read, {record.get('completion_tokens', 0):,} written"),
        ("isolation", record.get("isolation") or "no slot"),
        ("sandbox", record.get("sandbox") or "none"),
    ]
    return element("dl", *(join(element("dt", name), element("dd", str(value))) for name, value in facts))


def _foldable(title: str, text: str) -> Markup:
    """Return a text that is folded if it has many lines."""
    lines = text.count("\n") + 1
    opened = {} if lines > _FOLD_LINES else {"open": ""}
    heading = f"{title}, {lines} line{'' if lines == 1 else 's'}"
    return element("details", element("summary", heading), _block(text), cls="folded", **opened)


def _fold(title: str, text: str) -> Markup:
    return element("details", element("summary", title), _block(text), cls="folded")


def _block(text: str) -> Markup:
    return element("pre", _cut(text))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    left_out = len(text) - _MAX_CHARS
    return (
        text
        if left_out <= 0
        else f"{text[: _MAX_CHARS * 2 // 5]}\n… {left_out:,} characters left out …\n{text[-_MAX_CHARS * 3 // 5 :]}"
    )
