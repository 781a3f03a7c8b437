"""The Hermes format: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, any number of times, in any text."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_agent.messages import ToolCall
from hermes_agent.parsers.base import Format
from hermes_agent.parsers.blocks import Block
from hermes_agent.parsers.json_call import Bodies, call_of
from hermes_agent.parsers.nesting import CallTags
from hermes_agent.parsers.rendering import object_with
from hermes_agent.parsers.scan import Family, parser
from hermes_agent.parsers.source import SourceText
from hermes_agent.parsers.thinking import THINK


def tag_format(name: str, others: tuple[str, ...] = ()) -> Format:
    """Return the Hermes format with another name for its tags. `others` are tags that begin text in another role."""
    opening, closing = f"<{name}>", f"</{name}>"
    form = f'{opening}{{"name": "<tool>", "arguments": {{…}}}}{closing}'
    bodies = Bodies(CallTags(opening, closing, form, strings=True), (opening, *THINK))

    def read(source: SourceText, start: int) -> Block:
        body = bodies.read(source, start, start)
        return body.block(call_of(body.value, body.text, form))

    def render(calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"{opening}\n{object_with(call, 'arguments')}\n{closing}" for call in calls)

    return Format(parser(Family(form, {opening: read}, others=others)), render)


FORMAT = tag_format("tool_call")
