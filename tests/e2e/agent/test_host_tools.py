"""Tools of the host in an episode: marked as such for readers, and unknown to the model's service."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from hermes_agent import AgentLoop, Completion, ScriptedModel
from hermes_agent.models.scripted import call
from hermes_exec import SandboxPool
from hermes_exec.tools import Toolbox, tool

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


@tool
def web_search(query: str) -> dict[str, object]:
    """Search the web."""
    return {"hits": [query]}


async def test_calls_of_the_host_are_marked() -> None:
    calls = (call("web_search", {"query": "x"}, call_id="a"), call("terminal", {"command": "true"}, call_id="b"))
    model = ScriptedModel([Completion("", calls), "done"])
    async with SandboxPool("local") as pool, pool.slot() as slot:
        toolbox = Toolbox(slot, ["terminal", "web"], tools=[web_search])
        assert toolbox.unavailable == ("web_extract",)
        episode = await AgentLoop(model, toolbox).run("go")
    assert [(made.name, made.runs_on) for made in episode.tool_calls] == [("web_search", "host"), ("terminal", "slot")]
    assert json.loads(episode.messages[2]["content"]) == {"hits": ["x"]}
    marked = {schema["function"]["name"] for schema in episode.tools if schema.get("runs_on") == "host"}
    assert marked == {"web_search"}
    assert not any("runs_on" in schema for schema in model.requests[0].tools)


async def test_tool_that_awaits_what_was_cancelled_has_failed() -> None:
    @tool
    async def fetch(url: str) -> str:
        """Fetch a page."""
        raise asyncio.CancelledError

    async with SandboxPool("local") as pool, pool.slot() as slot:
        model = ScriptedModel([Completion("", (call("fetch", {"url": "x"}),)), "done"])
        episode = await AgentLoop(model, Toolbox(slot, tools=[fetch])).run("go")
    assert [(made.state, made.error_kind) for made in episode.tool_calls] == [("ended", "tool_failed")]
    assert "fetch raised CancelledError: something that it awaited was cancelled" in episode.messages[2]["content"]
    assert episode.finish == "answered"


async def test_tool_that_exits_has_failed() -> None:
    @tool
    def parse(arguments: list[str]) -> str:
        """Parse arguments."""
        sys.exit(2)  # as argparse does

    async with SandboxPool("local") as pool, pool.slot() as slot:
        model = ScriptedModel([Completion("", (call("parse", {"arguments": ["-x"]}),)), "done"])
        episode = await AgentLoop(model, Toolbox(slot, tools=[parse])).run("go")
    assert [(made.state, made.error_kind) for made in episode.tool_calls] == [("ended", "tool_failed")]
    assert "parse failed: SystemExit: 2" in episode.messages[2]["content"]


async def test_a_tool_that_is_not_there_is_named_for_the_model() -> None:
    async with SandboxPool("local") as pool, pool.slot() as slot:
        model = ScriptedModel([Completion("", (call("web_search", {"query": "x"}),)), "done"])
        episode = await AgentLoop(model, Toolbox(slot)).run("go")
    assert [(made.error_kind, made.schema_valid) for made in episode.tool_calls] == [("unknown_tool", False)]
    assert "Available tools: terminal" in episode.messages[2]["content"]
