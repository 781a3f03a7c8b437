"""The LongCat format: that of Hermes with tags of its own."""

from __future__ import annotations

from hermes_agent.parsers.hermes import tag_format

FORMAT = tag_format("longcat_tool_call", ("<longcat_tool_response>",))
