"""The Hermes format: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, any number of times, in any text."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.json_call import Bodies, call_of
from hermes_agent.parsers.rendering import object_with
from hermes_agent.parsers.scan import Block, Family, parser
from hermes_agent.parsers.thinking import THINK
from hermes_agent.parsers.typed import Toolset


def tagged(name: str) -> Format:
    """The format with this name for its tags."""
    opening, closing = f"<{name}>", f"</{name}>"
    form = f'{opening}{{"name": "<tool>", "arguments": {{…}}}}{closing}'
    bodies = Bodies(closing, (opening, *THINK))

    def read(text: str, start: int, _tools: Toolset) -> Block:
        body = bodies.read(text, start)
        return body.block(call_of(body.value, body.text, form), form)

    def render(calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"{opening}\n{object_with(call, 'arguments')}\n{closing}" for call in calls)

    return Format(parser(Family(form, {opening: read})), render)


FORMAT = tagged("tool_call")
