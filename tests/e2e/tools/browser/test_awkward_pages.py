"""Pages that do what tools do not expect: they lead elsewhere by themselves, or ask for files in ways of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from hermes_exec.slot.slot import Slot
from hermes_exec.tools.browser import browser as browsers
from hermes_exec.tools.browser import snapshot as snapshots
from hermes_exec.tools.browser.slot_browser import browser_of_slot
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import HOME, Surfer

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/refreshed", "/replaced"])
async def test_a_page_that_leads_on_by_itself(surf: Surfer, path: str) -> None:
    for _ in range(3):
        opened = await surf.goto(path)
        assert (opened["url"], opened["title"]) == (f"{HOME}/form", "Form")
        assert "Password" in opened["snapshot"]


@pytest.mark.whole
async def test_a_form_whose_answer_leads_on_to_the_page(changing: Surfer) -> None:
    await changing.goto("/notes")
    for number in range(8):
        await changing.look()
        await changing("type", ref=changing.ref("textbox"), text=f"note {number}")
        sent = await changing("press", key="Enter")
        assert f"note {number}" in sent["changes"]


@pytest.mark.whole
async def test_nothing_is_waited_for_that_does_not_come(changing: Surfer) -> None:
    """The answer for a frame without an address, and for a navigation that another replaced: waits of 30 s here."""
    with anyio.fail_after(25):
        assert "inside" in (await changing.goto("/hasty"))["snapshot"]
    with anyio.fail_after(25):
        assert "iframe" in (await changing("click", ref=changing.ref("Empty")))["changes"]
    with anyio.fail_after(25):
        assert (await changing("click", ref=changing.ref("Twice")))["url"] == f"{HOME}/form"


async def test_a_tab_that_an_action_opens_is_told_with_its_whole_page(changing: Surfer) -> None:
    await changing.goto("/popup")
    opened = await changing("click", ref=changing.ref("In parts"))
    assert opened["new_tab"] == f"{HOME}/parts"
    assert "the rest" in opened["changes"]


@pytest.mark.whole
async def test_a_page_that_leads_on_while_it_is_looked_at(changing: Surfer) -> None:
    await changing.goto("/restless")
    for _ in range(15):
        await changing("press", key="Shift")
        assert "paragraph: here" in await changing.look()


@pytest.fixture
async def leaving(slot: Slot, surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> Surfer:
    """The page has begun to go to one that never comes."""
    await surf.goto("/alone")
    monkeypatch.setattr(browsers, "ARRIVE_S", 1.0)
    running = await browser_of_slot(slot).ensure_running()
    await running.tabs.page.evaluate("void setTimeout(() => location = '/slow')")
    await running.wait_for_departure()
    return surf


@pytest.mark.whole
async def test_a_page_that_is_leaving_for_one_that_never_comes(leaving: Surfer) -> None:
    with anyio.fail_after(40):
        seen = await leaving("snapshot")
    assert seen["not_loaded"] == f"{HOME}/slow"
    assert "Import" in seen["snapshot"]
    await leaving("click", ref=leaving.ref("Import"))


@pytest.mark.parametrize("look", ["top_selector", "read_tree"])
async def test_a_page_that_leaves_for_one_that_never_comes_as_it_is_looked_at(
    surf: Surfer, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    await surf.goto("/form")
    monkeypatch.setattr(browsers, "ARRIVE_S", 1.0)
    looked = getattr(snapshots, look)

    async def looked_at(page: Page, *rest: object) -> object:
        monkeypatch.setattr(snapshots, look, looked)
        await page.evaluate("location = '/slow'")
        return await looked(page, *rest)

    monkeypatch.setattr(snapshots, look, looked_at)
    with anyio.fail_after(40):
        seen = await surf("snapshot")
    assert seen["not_loaded"] == f"{HOME}/slow"
    assert "Password" in seen["snapshot"]


async def test_a_page_that_is_leaving_is_left_for_another(leaving: Surfer) -> None:
    await leaving.goto("/form")
    assert "Import" in (await leaving("back"))["snapshot"]


async def test_a_call_that_is_given_up_stops_loading(surf: Surfer) -> None:
    await surf.goto("/form")
    with anyio.move_on_after(0.5):
        await surf.goto("/slow")
    with anyio.fail_after(20):
        assert "Password" in await surf.look()


async def downloaded(surf: Surfer, ref: str) -> dict[str, Any]:
    """What is told in the end of the file that a click has fetched."""
    told = await surf("click", ref=ref)
    while not told.get("downloads") or told["downloads"][0]["state"] == "in progress":
        told = await surf("snapshot")
    download: dict[str, Any] = told["downloads"][0]
    return download


async def test_downloads_with_names_that_no_file_can_have(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/long")
    download = await downloaded(surf, surf.ref("Long name"))
    assert download["path"].endswith("文.tar.gz")
    assert len(download["path"].rpartition("/")[2].encode()) <= 255
    assert await slot.files.read_bytes(download["path"]) == b"made"
    again = await downloaded(surf, surf.ref("Long name"))
    assert again["path"].endswith("文-2.tar.gz")


async def test_a_download_that_somebody_takes_away(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/files")
    ref = surf.ref("Made here")
    thief = "while :; do rm -f Downloads/*-*-*-*; done"
    process = await slot.spawn(f"cd && mkdir -p Downloads && {thief}")
    with anyio.fail_after(60):
        while (await downloaded(surf, ref))["state"] != "lost: No such file or directory":
            pass
    await process.kill()
    await surf.goto("/form")


async def test_a_field_for_files_that_is_in_no_document(surf: Surfer, slot: Slot) -> None:
    await slot.files.write_text("photo.png", "x")
    await slot.files.write_text("other.png", "x")
    await surf.goto("/alone")
    ref = surf.ref("Import")
    assert "file_chooser" in await surf("click", ref=ref)
    await slot.files.mkdir("directory")
    for text, kind in (("directory", "bad_value"), ("none.png", "not_found"), ("photo.png\nother.png", "bad_value")):
        assert (await surf.fails("type", ref=ref, text=text)).error_kind == kind
    await surf("type", ref=ref, text="photo.png")
    assert "photo.png true" in await surf.look()
    assert await surf.value("document.querySelectorAll('input').length") == 0


async def test_choices(surf: Surfer) -> None:
    await surf.goto("/choices")
    disabled = await surf.fails("type", ref=surf.ref('"One"'), text="green")
    assert "'green' is disabled; there are: red." in disabled.content
    await surf("type", ref=surf.ref('"Some"'), text="red\nblue")
    assert "red,blue" in await surf.look()


async def test_values_that_are_no_json(surf: Surfer) -> None:
    await surf.goto("/form")
    assert "self" in str(await surf.value("(() => { const a = {}; a.self = a; return a; })()"))
    assert (await surf.fails("console", expression="new Date(8640000000000000)")).error_kind == "bad_value"
    assert (await surf.fails("click", ref="f99e1")).error_kind == "not_found"


async def test_a_drawing_has_no_elements_to_annotate(surf: Surfer) -> None:
    await surf("navigate", url=f"{HOME}/pixel.svg")
    with anyio.fail_after(20):
        assert (await surf("vision", question="what?", annotate=True))["annotations"] == []


DRIVEN = """
import os
from hermes_exec import SandboxPool
from hermes_exec.backends.owner import descendants
from hermes_exec.tools import Toolbox
for _ in range(2):
    with SandboxPool("local", network=False) as pool, pool.slot() as slot:
        assert Toolbox(slot, ["browser"]).call("browser_navigate", {"url": "data:text/html,x"}).ok
    print(len(descendants(os.getpid())))
"""


@pytest.mark.whole
async def test_the_driver_ends_with_its_event_loop() -> None:
    require_engine("chromium")
    done = await anyio.run_process([sys.executable, "-c", DRIVEN], stderr=subprocess.STDOUT)
    assert done.stdout.split() == [b"0", b"0"], done.stdout.decode()
