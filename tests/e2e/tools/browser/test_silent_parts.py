"""Pages with frames, scripts and stylesheets that never respond."""

from __future__ import annotations

import anyio
import pytest

from hermes_exec.tools.browser import browser, results, tools
from tests.e2e.tools.browser.conftest import HOME, Surfer

pytestmark = pytest.mark.anyio

SILENT = {
    "frame": f"{HOME}/slow",
    "nested": f"{HOME}/slow",
    "far": "http://127.0.0.1:8123/slow",
    "busy": "about:srcdoc",
    "script": f"{HOME}/slow",
    "style": f"{HOME}/slow",
}


@pytest.fixture(autouse=True)
def usual_waits(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits that these pages use up have their usual lengths."""
    monkeypatch.setattr(browser, "SETTLE_S", 1.0)
    for module in (results, tools):
        monkeypatch.setattr(module, "LOAD_S", 5.0)


@pytest.mark.parametrize("part", SILENT)
async def test_page_with_silent_part_is_shown(surf: Surfer, part: str) -> None:
    with anyio.fail_after(40):
        opened = await surf.goto(f"/silent/{part}")
    assert opened["title"] == "Shown"
    with anyio.fail_after(20):
        seen = await surf("snapshot")
    for shown in (opened, seen):
        assert 'button "Here"' in shown["snapshot"]
        assert shown["not_loaded"] == SILENT[part]
        assert SILENT[part] in shown["note"]
    if part != "style":  # no browser draws a page before its stylesheets have arrived
        with anyio.fail_after(20):
            await surf("click", ref=surf.ref("Here"))
    with anyio.fail_after(20):
        assert (await surf("get_images"))["count"] == 0
    with anyio.fail_after(20):
        assert (await surf("vision", question="what?", annotate=True))["annotations"]
    with anyio.fail_after(40):
        assert "not_loaded" not in await surf.goto("/form")


async def test_invisible_silent_frame_is_not_waited_for(surf: Surfer) -> None:
    await surf.goto("/hidden")
    with anyio.fail_after(2.5):
        seen = await surf("snapshot")
    assert "not_loaded" not in seen
