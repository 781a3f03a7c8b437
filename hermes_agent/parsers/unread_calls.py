"""Calls in a text that was taken for an answer without calls: no parser, or one of another format, has read it."""

from __future__ import annotations

import logging

from hermes_agent.messages import AnswerProblem
from hermes_agent.parsers import FORMATS
from hermes_agent.parsers.base import Tools

UNREAD_CALLS = "unread_calls"
"""The `kind` of the problem."""

_LOG = logging.getLogger(__name__)
_TAGS = (
    *("<tool_call>", "<longcat_tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<｜DSML｜"),
    *("<|tool_call_begin|>", "<function="),
)
_WARNED: set[tuple[str, str]] = set()


def unread_calls(text: str | None, tools: Tools, *, model: str) -> AnswerProblem | None:
    """Return the problem of an answer without calls whose text has a whole call of one of `tools`, in any format.

    The first answer of a `model` with such calls is logged as a warning, because the parser is then forgotten or wrong.
    """
    name = _format_of_calls(text or "", tools)
    if name is None:
        return None
    if (model, name) not in _WARNED:
        _WARNED.add((model, name))
        _LOG.warning("%s writes calls as text, in the format %r, which is not read: give parser=%r", model, name, name)
    message = f"the answer has calls in the format {name!r}, which no parser has read (parser={name!r} does)"
    return AnswerProblem(UNREAD_CALLS, message, trainable=False)


def _format_of_calls(text: str, tools: Tools) -> str | None:
    bare = text.lstrip().startswith(("{", "["))
    if not tools or not (bare or any(tag in text for tag in _TAGS)):
        return None
    names = {str(tool["function"]["name"]) for tool in tools}
    for name, form in FORMATS.items():
        # Prose may quote JSON in a fence, which is a form of calls in this format alone.
        if name == "json" and not bare:
            continue
        if any(call.name in names for call in form.parse(text, tools).calls):
            return name
    return None
