"""The LongCat format: the Hermes format with its own tags."""

from __future__ import annotations

from hermes_agent.parsers.hermes import tag_format

FORMAT = tag_format("longcat_tool_call", ("<longcat_tool_response>",))
