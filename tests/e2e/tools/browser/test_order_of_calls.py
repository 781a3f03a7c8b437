"""The calls of one turn run in order in the browser, too: a snapshot shows what the calls before it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hermes_agent import AgentLoop, Completion, ScriptedModel, ToolCall
from hermes_agent.models.scripted import call
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from tests.e2e.tools.browser.conftest import HOME, TOOLSETS

pytestmark = [pytest.mark.anyio]


def page(number: int, workdir: str) -> list[ToolCall]:
    path = f"{workdir}/page.html"
    return [
        call("write_file", {"path": path, "content": f"<h1>number {number}</h1><img alt={number} src='{number}.png'>"}),
        call("browser_navigate", {"url": f"file://{path}"}),
        call("browser_snapshot", {}),
        call("browser_get_images", {}),
    ]


def change(number: int, workdir: str) -> list[ToolCall]:
    return [
        call("browser_navigate", {"url": f"{HOME}/form"}),
        call("browser_console", {"expression": f"void (document.body.innerHTML = '<h1>number {number}</h1>')"}),
        call("browser_snapshot", {}),
        call("terminal", {"command": f"echo number {number} > f"}),
        call("read_file", {"path": "f"}),
    ]


@pytest.mark.whole
@pytest.mark.parametrize("turn", [page, change])
async def test_browser_calls_of_a_turn_run_in_order(turn: Callable[[int, str], list[ToolCall]], slot: Slot) -> None:
    turns = 16
    asked = [Completion("", tuple(turn(number, slot.workdir))) for number in range(turns)]
    async with Toolbox(slot, TOOLSETS, tools=["browser_close"]) as toolbox:
        episode = await AgentLoop(ScriptedModel([*asked, "done"]), toolbox, max_turns=turns + 1).run("go")
        await toolbox.call("browser_close", {})
    assert (episode.finish, episode.errors) == ("answered", ())
    shown: dict[str, list[dict[str, Any]]] = {}
    for record in episode.tool_calls:
        assert record.ok, record.content
        shown.setdefault(record.name, []).append(json.loads(record.content))
    for number in range(turns):
        assert f"number {number}" in shown["browser_snapshot"][number]["snapshot"]
        if turn is page:
            assert f"{number}.png" in json.dumps(shown["browser_get_images"][number])
        else:
            assert f"number {number}" in shown["read_file"][number]["content"]
