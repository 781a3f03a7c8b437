"""Finds calls in an answer without calls, if its parser is missing or reads another format."""

from __future__ import annotations

import logging

from hermes_agent.messages import AnswerProblem
from hermes_agent.parsers import FORMATS
from hermes_agent.parsers.base import Tools

UNREAD_CALLS = "unread_calls"
"""The `kind` of the problem."""

logger = logging.getLogger(__name__)
_TAGS = (
    *("<tool_call>", "<longcat_tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<｜DSML｜"),
    *("<|tool_call_begin|>", "<function="),
)
_WARNED: set[tuple[str, str]] = set()


def unread_calls(text: str | None, tools: Tools, *, model: str) -> AnswerProblem | None:
    """Return the problem of an answer without calls whose text has a complete call of one of `tools`, in any format.

    The first such answer of a `model` is logged as a warning, because its parser is missing or wrong.
    """
    name = _format_of_calls(text or "", tools)
    if name is None:
        return None
    if (model, name) not in _WARNED:
        _WARNED.add((model, name))
        logger.warning("%s writes calls as text, in the format %r, which is not read: set parser=%r", model, name, name)
    message = f"the answer has calls in the format {name!r}, which no parser has read (parser={name!r} does)"
    return AnswerProblem(UNREAD_CALLS, message, trainable=False)


def _format_of_calls(text: str, tools: Tools) -> str | None:
    bare = text.lstrip().startswith(("{", "["))
    if not tools or not (bare or any(tag in text for tag in _TAGS)):
        return None
    names = {str(tool["function"]["name"]) for tool in tools}
    for name, form in FORMATS.items():
        # Prose may quote JSON in a fence, and only this format reads a fence as calls.
        if name == "json" and not bare:
            continue
        if any(call.name in names for call in form.parse(text, tools).calls):
            return name
    return None
