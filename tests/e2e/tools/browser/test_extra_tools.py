"""The tools of the toolset `browser_extra` against a real Chromium: waiting, tabs, the mouse, requests and storage."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from hermes_exec.tools.browser import extra_tools
from hermes_exec.tools.browser.slot_browser import browser_of_slot
from tests.e2e.tools.browser.conftest import HOME, TOOLSETS, Surfer

EMPTY = "data:text/html,<title>Empty</title>"


@pytest.fixture
async def second(slot: Slot, surf: Surfer) -> AsyncIterator[Surfer]:
    """A second toolbox in the same slot, whose browser has ended when it is used."""
    async with Toolbox(slot, [*TOOLSETS, "browser_extra"]) as toolbox:
        yield Surfer(toolbox)


async def test_wait_for_sees_texts_come_and_go(surf: Surfer) -> None:
    await surf.goto("/timed")
    await surf("wait_for", textGone="Loading")
    assert "Loading" not in await surf.look()
    waited = await surf("wait_for", text="Ready", textGone="Almost", time=30)  # in a frame, and hidden
    assert 0 <= waited["waited_s"] < 30
    assert (await surf("wait_for", time=0.2))["waited_s"] >= 0.2


async def test_wait_for_gives_up_and_explains(surf: Surfer) -> None:
    await surf.goto("/form")
    missing = await surf.fails("wait_for", text="Nowhere", textGone="Send", time=0.5)
    assert missing.error_kind == "timeout"
    assert "'Nowhere' is not shown" in missing.content
    assert "'Send' is not gone" in missing.content
    assert (await surf.fails("wait_for")).error_kind == "missing_argument"
    assert (await surf.fails("wait_for", text="")).error_kind == "bad_value"
    await surf.goto("/dialogs")
    await surf.value("setTimeout(() => alert('now'), 300)")
    assert (await surf.fails("wait_for", text="Nowhere", time=60)).error_kind == "dialog_open"


async def test_tabs_are_listed_opened_selected_and_closed(surf: Surfer) -> None:
    await surf.goto("/popup")
    await surf("click", ref=surf.ref('link "New tab"'))
    listed = (await surf("tabs", action="list"))["tabs"]
    assert [(tab["index"], tab["title"], tab["current"]) for tab in listed] == [(0, "Popup", False), (1, "Form", True)]
    selected = await surf("tabs", action="select", index=0)
    assert (selected["title"], selected["current_tab"]) == ("Popup", 0)
    assert surf.ref('button "Window"')
    assert await surf.value("document.title") == "Popup"
    opened = await surf("tabs", action="new")
    assert (opened["url"], len(opened["tabs"])) == ("about:blank", 3)
    assert "current_tab" not in opened
    await surf.goto("/shadow")
    left = await surf("tabs", action="close", index=0)
    assert (left["title"], [tab["title"] for tab in left["tabs"]]) == ("Shadow", ["Form", "Shadow"])
    await surf("tabs", action="select", index=0)
    assert (await surf("tabs", action="close"))["title"] == "Shadow"  # the selected tab is closed
    assert (await surf("tabs", action="close"))["tabs"] == []
    assert (await surf.goto("/form"))["title"] == "Form"


async def test_tabs_refuse_what_is_not_there(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    await surf("navigate", url=EMPTY)
    assert "There is no tab 7: there are 1" in (await surf.fails("tabs", action="select", index=7)).content
    assert (await surf.fails("tabs", action="select")).error_kind == "missing_argument"
    monkeypatch.setattr(extra_tools, "MAX_TABS", 1)
    assert "close one first" in (await surf.fails("tabs", action="new")).content


async def test_crashed_tab_leaves_the_others_usable(surf: Surfer) -> None:
    await surf.goto("/form")
    await surf("tabs", action="new")
    await surf.call("cdp", method="Page.crash", timeout=2)
    assert (await surf.fails("snapshot")).error_kind == "page_crashed"
    assert (await surf("tabs", action="select", index=0))["title"] == "Form"
    assert (await surf.fails("tabs", action="select", index=1)).error_kind == "page_crashed"
    assert (await surf("tabs", action="close", index=1))["title"] == "Form"


async def test_mouse_hovers_and_drags(surf: Surfer) -> None:
    await surf.goto("/mouse")
    assert "Hidden entry" not in surf.snapshot
    button = surf.ref('button "Menu"')
    assert (await surf("hover", ref=button))["hovered"] == button
    assert "Hidden entry" in await surf.look()
    card, basket = surf.ref('button "Card"'), surf.ref('button "Basket"')
    dragged = await surf("drag", startRef=card, endRef=basket)
    assert (dragged["dragged"], dragged["to"]) == (card, basket)
    assert "holds card" in await surf.look()
    assert (await surf.fails("drag", startRef=card, endRef="@e999")).error_kind == "not_found"
    assert (await surf.fails("hover", ref="@e999")).error_kind == "not_found"


async def test_network_requests_are_those_of_the_page(surf: Surfer) -> None:
    await surf.goto("/")
    await surf.goto("/asking")
    listed = await surf("network_requests")
    requests = {request["url"]: request for request in listed["requests"]}
    assert requests[f"{HOME}/form?token=xxxxxxxxxx"] == {
        "method": "GET",
        "url": f"{HOME}/form?token=xxxxxxxxxx",
        "type": "fetch",
        "status": 200,
    }
    assert requests[f"{HOME}/missing"]["status"] == 404
    assert "ERR" in requests["http://localhost:1/"]["error"]
    assert (listed["count"], listed["static_left_out"]) == (3, 2)
    everything = (await surf("network_requests", static=True))["requests"]
    assert [request["type"] for request in everything[:2]] == ["document", "image"]
    assert [request["url"] for request in (await surf("network_requests", filter="missing"))["requests"]] == [
        f"{HOME}/missing"
    ]


async def test_network_requests_mask_passwords_and_are_bounded(surf: Surfer) -> None:
    await surf.goto("/asking")
    await surf("type", ref=surf.ref('textbox "Password"'), text="top secret+")
    await surf("click", ref=surf.ref('button "Send"'))
    listed = await surf.call("network_requests", static=True)
    assert f"{HOME}/sent?password=***" in listed.content
    assert "secret" not in listed.content
    await surf("console", expression=f"for (let i = 0; i < 700; i++) fetch('{HOME}/form?' + i); 1")
    await surf("wait_for", time=1)
    assert 0 < (await surf("network_requests"))["count"] <= 500


async def test_storage_state_is_saved_and_restored(surf: Surfer, second: Surfer, slot: Slot) -> None:
    await surf.goto("/cookie")
    saved = await surf("storage_state", filename="kept.json")
    assert (saved["path"], saved["cookies"], saved["origins"]) == (f"{slot.workdir}/kept.json", 1, 1)
    assert (await slot.files.stat(saved["path"])).mode & 0o777 == 0o600
    assert json.loads(await slot.files.read_text(saved["path"]))["origins"][0]["localStorage"] == [
        {"name": "who", "value": "me"}
    ]
    await surf("close")
    await second.goto("/form")
    assert await second.value("document.cookie + localStorage.who") == "undefined"
    restored = await second("set_storage_state", filename="kept.json")
    assert (restored["cookies"], restored["origins"]) == (1, 1)
    await second.goto("/form")
    assert await second.value("document.cookie + ' ' + localStorage.who") == "who=me me"


async def test_storage_state_refuses_other_files(surf: Surfer, slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    await surf.goto("/cookie")
    assert (await surf.call("set_storage_state", filename="none.json")).error_kind == "not_found"
    others = (
        "[]",
        "no json",
        '{"cookies": [], "origins": 1}',
        '{"cookies": [{"name": 1}], "origins": []}',
        "[" * 10_000,
    )
    for other in others:
        await slot.files.write_text("other.json", other)
        refused = await surf.call("set_storage_state", filename="other.json")
        assert (refused.error_kind, "is no storage state" in refused.content) == ("bad_value", True)
    await slot.files.write_text("other.json", json.dumps({"cookies": [], "origins": [{}] * 101}))
    assert (await surf.call("set_storage_state", filename="other.json")).error_kind == "too_large"
    assert await surf.value("document.cookie") == "who=me"
    monkeypatch.setattr(extra_tools, "MAX_STATE_BYTES", 10)
    assert (await surf.call("set_storage_state", filename="other.json")).error_kind == "too_large"
    assert (await surf.call("storage_state")).error_kind == "too_large"
    assert browser_of_slot(slot).running is not None
