"""What the tests of all families need: tools, calls in the words of each family, and their tags."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hermes_agent.messages import ToolCall
from hermes_agent.parsers import FORMATS, ParsedText

ANY = {"type": "object", "additionalProperties": True}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "command": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "tags": {"type": "array"},
                    "options": ANY,
                    "limit": {"type": ["integer", "null"]},
                },
            },
        },
    }
    for name in ("write_file", "terminal", "a", "b", "rm", "ls")
]

NAMES = sorted(FORMATS)
TYPED = ["deepseek_v32", "glm45", "glm47", "qwen3_coder"]
AS_JSON = [name for name in NAMES if name not in TYPED and name != "deepseek_dsml"]
"""Families that write arguments as one JSON object."""

BARE = ["json", "llama3_json", "llama4_json"]
"""Families whose calls cannot stand anywhere in a text."""


class Tags(NamedTuple):
    """Marks of a family: what a call begins with, all before its JSON or its values, and what it ends with."""

    opening: str
    head: str
    closing: str


TAGS = {
    "hermes": Tags("<tool_call>", "<tool_call>", "</tool_call>"),
    "longcat": Tags("<longcat_tool_call>", "<longcat_tool_call>", "</longcat_tool_call>"),
    "mistral": Tags("[TOOL_CALLS]", "[TOOL_CALLS]a[ARGS]", ""),
    "llama3_json": Tags("<|python_tag|>", "<|python_tag|>", ""),
    "json": Tags("```json\n", "```json\n", "\n```"),
    "deepseek_v3": Tags(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Tags(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi_k2": Tags(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "deepseek_v32": Tags(
        "<｜DSML｜function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="a">\n',
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "glm45": Tags("<tool_call>", "<tool_call>a\n", "</tool_call>"),
    "qwen3_coder": Tags("<tool_call>", "<tool_call>\n<function=a>\n", "</function>\n</tool_call>"),
}
TAGS |= {
    "qwen": TAGS["hermes"],
    "llama4_json": TAGS["llama3_json"],
    "deepseek_v3_1": TAGS["deepseek_v31"],
    "deepseek_dsml": TAGS["deepseek_v32"],
    "glm47": TAGS["glm45"],
}


def call(name: str, tool: str, **arguments: object) -> str:
    """A call as the family writes it; in bare JSON within a fence, for text to stand around it."""
    text = FORMATS[name].render([ToolCall("", tool, json.dumps(arguments))])
    return f"\n```json\n{text}\n```\n" if name == "json" else text


def parse(name: str, text: str) -> ParsedText:
    """What the parser of that name makes of a text, with the tools of these tests."""
    return FORMATS[name].parse(text, TOOLS)


def made(parsed: ParsedText) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of the well-formed calls."""
    return [(made.name, json.loads(made.arguments)) for made in parsed.calls]
