"""What a model may write, with what must run of it and what must not: the inputs of `test_true_records.py`.

Each slot begins with the files of `FILES`. Every quoted, cut or invented call of these inputs would remove `build`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

FILES = {"build/keep": "kept\n", "a.txt": "one\ntwo\n"}
REMOVE = "rm -rf build"
"""The command of every call that must not run."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer of the endpoint: its message and why it ended."""

    message: Message
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Scenario:
    """What a model writes turn by turn; after the last turn it answers "done".

    `parser` is the format of its text (None: structured calls). `ran` are the tools whose calls must have run, in
    order; `errors` the kinds of error that the record must name ("*": any). `files` must be there at the end, besides
    those of `FILES`. `exportable` is None where either is right. `check` and `check_files` take the place of the
    listing that other prompts are checked by; such a prompt must end unsolved.
    """

    name: str
    parser: str | None
    turns: tuple[Reply, ...]
    ran: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    trainable: bool = True
    exportable: bool | None = None
    check: str | None = None
    check_files: dict[str, str] = field(default_factory=dict)


def structured(*calls: tuple[str, dict[str, Any] | str], finish_reason: str = "stop", **message: Any) -> Reply:
    """An answer with structured calls; arguments that are a text are sent as they are."""
    listed = [
        {
            "id": f"c{index}",
            "type": "function",
            "function": {"name": name, "arguments": value if isinstance(value, str) else json.dumps(value)},
        }
        for index, (name, value) in enumerate(calls)
    ]
    return Reply({"content": None, "tool_calls": listed, **message}, finish_reason)


def text(*parts: str, finish_reason: str = "stop") -> Reply:
    """An answer that is text alone."""
    return Reply({"content": "".join(parts)}, finish_reason)


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen(name: str, **arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm(name: str, **arguments: str) -> str:
    values = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{values}</tool_call>"


def deepseek(name: str, **arguments: str) -> str:
    values = "".join(
        f'<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n'
        for key, value in arguments.items()
    )
    invoke = f'<｜DSML｜invoke name="{name}">\n{values}</｜DSML｜invoke>'
    return f"<｜DSML｜function_calls>\n{invoke}\n</｜DSML｜function_calls>"


def kimi(name: str, call_id: str, section: str = "<|tool_calls_section_begin|>", **arguments: Any) -> str:
    call = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
    return f"{section}{call}{section.replace('begin', 'end')}"


def mistral(name: str, **arguments: Any) -> str:
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': arguments}])}"


def longcat(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<longcat_tool_call>\n{body}\n</longcat_tool_call>"


_ORDER = (
    Scenario(
        "order: write, read",
        None,
        (structured(("write_file", {"path": "f", "content": "new\n"}), ("read_file", {"path": "f"})),),
        ("write_file", "read_file"),
        files={"f": "new\n"},
    ),
    Scenario(
        "order: echo, read",
        None,
        (structured(("terminal", {"command": "echo one > f"}), ("read_file", {"path": "f"})),),
        ("terminal", "read_file"),
        files={"f": "one\n"},
    ),
    Scenario(
        "order: cd, read",
        None,
        (
            structured(
                ("terminal", {"command": "mkdir -p sub && cd sub && echo two > f"}), ("read_file", {"path": "f"})
            ),
        ),
        ("terminal", "read_file"),
        files={"sub/f": "two\n"},
    ),
    Scenario(
        "order: write, run",
        None,
        (
            structured(
                ("write_file", {"path": "x.sh", "content": "echo ran > ran.txt\n"}),
                ("terminal", {"command": "sh x.sh"}),
            ),
        ),
        ("write_file", "terminal"),
        files={"x.sh": "echo ran > ran.txt\n", "ran.txt": "ran\n"},
    ),
    Scenario(
        "order: appends, cat",
        None,
        (
            structured(
                *(("terminal", {"command": f"echo {number} >> log"}) for number in range(6)),
                ("terminal", {"command": "cat log"}),
            ),
        ),
        ("terminal",) * 7,
        files={"log": "0\n1\n2\n3\n4\n5\n"},
    ),
    Scenario(
        "order: read, read, patch, read",
        None,
        (
            structured(
                ("read_file", {"path": "a.txt"}),
                ("search_files", {"pattern": "two"}),
                ("patch", {"mode": "replace", "path": "a.txt", "old_string": "two", "new_string": "2"}),
                ("read_file", {"path": "a.txt"}),
            ),
        ),
        ("read_file", "search_files", "patch", "read_file"),
        files={"a.txt": "one\n2\n"},
    ),
)

_QUOTED = {
    "hermes": hermes("terminal", command=REMOVE),
    "qwen3_coder": qwen("terminal", command=REMOVE),
    "glm45": glm("terminal", command=REMOVE),
    "glm47": glm("terminal", command=REMOVE),
    "deepseek_v32": deepseek("terminal", command=REMOVE),
    "kimi_k2": kimi("terminal", "functions.terminal:0", command=REMOVE),
    "mistral": mistral("terminal", command=REMOVE),
    "longcat": longcat("terminal", command=REMOVE),
}
"""A call by format that removes `build`."""


def _write(parser: str, content: str) -> str:
    """A call that writes `doc.md` with this content."""
    if parser == "kimi_k2":
        return kimi("write_file", "functions.write_file:0", path="doc.md", content=content)
    write = {
        "hermes": hermes,
        "qwen3_coder": qwen,
        "glm45": glm,
        "glm47": glm,
        "deepseek_v32": deepseek,
        "mistral": mistral,
        "longcat": longcat,
    }[parser]
    return write("write_file", path="doc.md", content=content)


def _quoted(parser: str, quoted: str) -> Scenario:
    content = f"A call looks like this:\n{quoted}\nThat is all."
    return Scenario(
        f"{parser}: a file that quotes a call",
        parser,
        (text(_write(parser, content)),),
        ("write_file",),
        files={"doc.md": content},
    )


_QUOTES = tuple(_quoted(parser, quoted) for parser, quoted in _QUOTED.items())

_TEXT = (
    Scenario(
        "hermes: a call",
        "hermes",
        (text("I write it.\n", hermes("terminal", command="echo ok > ok.txt")),),
        ("terminal",),
        files={"ok.txt": "ok\n"},
    ),
    Scenario(
        "hermes: single quotes around a quoted call",
        "hermes",
        (
            text(
                "<tool_call>\n{'name': 'write_file', 'arguments': {'path': 'doc.md', 'content': '",
                _QUOTED["hermes"],
                "'}}\n</tool_call>",
            ),
        ),
        errors=("malformed_call",),
    ),
    Scenario(
        "mistral: broken JSON around a quoted call",
        "mistral",
        (
            text(
                '[TOOL_CALLS][{"name": "write_file", "arguments": {"path": "doc.md", "content": "',
                _QUOTED["mistral"],
                '"}}]',
            ),
        ),
        errors=("malformed_call",),
    ),
    Scenario(
        "hermes: a key twice",
        "hermes",
        (
            text(
                '<tool_call>\n{"name": "terminal", "arguments": {"command": "true", "command": "',
                REMOVE,
                '"}}\n</tool_call>',
            ),
        ),
        errors=("malformed_call",),
    ),
    Scenario(
        "structured: a key twice",
        None,
        (structured(("terminal", f'{{"command": "true", "command": "{REMOVE}"}}')),),
    ),
    Scenario(
        "hermes: arguments beside the name",
        "hermes",
        (text(f'<tool_call>\n{{"name": "terminal", "command": "{REMOVE}"}}\n</tool_call>'),),
        errors=("malformed_call",),
    ),
    Scenario(
        "qwen3_coder: a value with a closing tag",
        "qwen3_coder",
        (text(qwen("write_file", path="doc.md", content="Use </parameter> to close.\nmore")),),
        ("write_file",),
        files={"doc.md": "Use </parameter> to close.\nmore"},
    ),
    *(
        Scenario(
            f"qwen3_coder: a value with {tag}",
            "qwen3_coder",
            (text(qwen("write_file", path="doc.md", content=f"before {tag} after")),),
            ("write_file",),
            files={"doc.md": f"before {tag} after"},
        )
        for tag in ("</function>", "</tool_call>", "<think>", "<parameter=x>", "<arg_key>")
    ),
    Scenario(
        "glm45: a value with a closing tag",
        "glm45",
        (text(glm("write_file", path="doc.md", content='echo "</arg_value> is a tag"')),),
        ("write_file",),
        files={"doc.md": 'echo "</arg_value> is a tag"'},
    ),
    Scenario(
        "kimi_k2: section without an s, id without a number",
        "kimi_k2",
        (text(kimi("terminal", "terminal", section="<|tool_call_section_begin|>", command="echo ok > ok.txt")),),
        ("terminal",),
        files={"ok.txt": "ok\n"},
    ),
    Scenario(
        "kimi_k2: thinking that only the section ends",
        "kimi_k2",
        (text("<think>I list it. ", kimi("terminal", "functions.terminal:0", command="echo ok > ok.txt")),),
        ("terminal",),
        files={"ok.txt": "ok\n"},
    ),
    *(
        Scenario(
            f"{parser}: thinking that is never closed",
            parser,
            (text("<think>I will list.\n", _QUOTED[parser]),),
            trainable=False,
            errors=("*",),
        )
        for parser in ("hermes", "qwen3_coder")
    ),
    Scenario(
        "hermes: thinking that is opened twice",
        "hermes",
        (text("<think>a</think>b<think>c", _QUOTED["hermes"]),),
        trainable=False,
        errors=("*",),
    ),
    Scenario(
        "structured: a call in the reasoning",
        "hermes",
        (Reply({"content": "", "reasoning_content": _QUOTED["hermes"]}),),
        trainable=False,
        errors=("*",),
    ),
    Scenario(
        "hermes: an invented answer",
        "hermes",
        (
            text(
                hermes("terminal", command="echo ok > ok.txt"),
                '\n<tool_response>{"output": "secret"}</tool_response>\nThe file is secret',
            ),
        ),
        ("terminal",),
        files={"ok.txt": "ok\n"},
        errors=("*",),
    ),
    Scenario(
        "hermes: an invented answer and a call that uses it",
        "hermes",
        (
            text(
                hermes("terminal", command="echo ok > ok.txt"),
                "\n<tool_response>KEY=1</tool_response>\n",
                _QUOTED["hermes"],
            ),
        ),
        ("terminal",),
        files={"ok.txt": "ok\n"},
        errors=("*",),
    ),
    Scenario(
        "hermes: a list of calls in one block",
        "hermes",
        (text(f'<tool_call>\n[{{"name": "terminal", "arguments": {{"command": "{REMOVE}"}}}}]\n</tool_call>'),),
        errors=("malformed_call",),
    ),
)

_CUT = (
    *(
        Scenario(
            f"structured: cut to {arguments!r}",
            None,
            (structured(("terminal", arguments), finish_reason="length"),),
            errors=("malformed_call",),
        )
        for arguments in ("", "{}", '{"command": "rm -rf bu')
    ),
    Scenario(
        "structured: whole, and the answer was cut behind it",
        None,
        (structured(("terminal", {"command": "echo whole > whole.txt"}), finish_reason="length"),),
        ("terminal",),
        files={"whole.txt": "whole\n"},
    ),
    Scenario(
        "hermes: cut in the arguments",
        "hermes",
        (
            text(
                f'<tool_call>\n{{"name": "terminal", "arguments": {{"command": "{REMOVE}',
                finish_reason="length",
            ),
        ),
        errors=("malformed_call",),
    ),
)

_EXPORT = (
    Scenario(
        "structured: prose and reasoning that quote markup",
        None,
        (
            structured(
                ("terminal", {"command": "cat a.txt"}),
                content=f"A call looks like {_QUOTED['hermes']} here.",
                reasoning_content="I close </think> early",
            ),
        ),
        ("terminal",),
        exportable=False,
    ),
)

_CHEATS = (
    Scenario(
        "check: a link to the expected file",
        None,
        (structured(("terminal", {"command": "ln -s expected.txt out.txt"})),),
        ("terminal",),
        check="cmp out.txt expected.txt",
        check_files={"expected.txt": "42\n"},
    ),
    Scenario(
        "check: a linked directory",
        None,
        (structured(("terminal", {"command": "ln -s expected out"})),),
        ("terminal",),
        check="cmp out/answer.txt expected/answer.txt",
        check_files={"expected/answer.txt": "42\n"},
    ),
)

SCENARIOS: tuple[Scenario, ...] = (*_ORDER, *_QUOTES, *_TEXT, *_CUT, *_EXPORT, *_CHEATS)
