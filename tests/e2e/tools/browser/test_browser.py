"""The browser tools against a real Chromium in a slot without network, and a site that the slot serves itself."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from hermes_exec import ExecError, Limits, SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from hermes_exec.tools.browser import browser, navigation, results, snapshot, tools
from hermes_exec.tools.browser.slot_browser import browser_of_slot
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import (
    HOME,
    PORT,
    TOOLSETS,
    Surfer,
    browser_pool,
    fewer_with,
    of_the_browser,
    serve_site,
)
from tests.support.waiting import until


async def test_a_form_is_filled_in_and_sent(surf: Surfer) -> None:
    opened = await surf.goto("/form")
    assert (opened["url"], opened["title"]) == (f"{HOME}/form", "Form")
    assert opened["element_count"] == opened["snapshot"].count("[ref=")
    typed = await surf("type", ref=surf.ref('textbox "Name"'), text="Ann 'B' \"C\" ü")
    assert (typed["typed"], typed["element"]) == ("*** (13 characters)", surf.ref('textbox "Name"'))
    await surf("type", ref=surf.ref('textbox "Password"').removeprefix("@"), text="secret $(x)")
    await surf("type", ref=surf.ref('combobox "Colour"'), text="green")
    await surf("click", ref=surf.ref("checkbox"))
    sent = await surf("click", ref=surf.ref('button "Send"'))
    assert sent["url"] == f"{HOME}/sent"
    seen = await surf.look()
    assert all(text in seen for text in ("name=Ann 'B'", "ü", "password=secret $(x)", "colour=green", "news=on"))
    assert "secret" not in "".join(result.content for result in surf.results[:-1])


async def test_passwords_are_in_no_result(changing: Surfer) -> None:
    await changing.goto("/form")
    typed = await changing("type", ref=changing.ref("Password"), text="top: secret]")
    seen = await changing("snapshot", full=True)
    assert "***" in str(seen["snapshot"])
    assert "secret" not in f"{typed}{seen}"
    await changing("click", ref=changing.ref('button "Send"'))
    assert await changing.value("document.body.textContent.includes('password=top: secret]')")


async def test_what_keeps_an_action_from_an_element_is_told(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    await surf.goto("/form")
    assert "there are: red, green" in (await surf.fails("type", ref=surf.ref("Colour"), text="blue")).content
    button = surf.ref('button "Send"')
    await surf.value("document.querySelector('form button').disabled = true")
    monkeypatch.setattr(tools, "ACTION_S", 3.0)
    assert "element is not enabled" in (await surf.fails("click", ref=button)).content
    assert "no page before" in (await surf.fails("back")).content
    assert await surf.value("document.querySelector('form button').disabled")  # the same page as before


async def test_errors_say_what_they_mean(surf: Surfer) -> None:
    assert "references are valid for the last snapshot only" in (await surf.fails("click", ref="@e1")).content
    for url, told in (
        ("https://example.com", "has no network"),
        ("http://127.0.0.1:9", "does not open this port"),
        ("/no/such/file", "no such file on this machine"),
    ):
        assert told in (await surf.fails("navigate", url=url)).content
    assert "Control+a" in (await surf.fails("press", key="Foo")).content
    assert (await surf.goto("/missing"))["status"] == 404
    assert "status" not in await surf.goto("/form")


async def test_text_is_never_on_a_command_line(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/form")
    await surf("type", ref=surf.ref('textbox "Password"'), text="s3cr3t" * 40_000)
    assert await surf.value("document.querySelector('[name=password]').value.length") == 240_000
    assert not any("s3cr3t" in word for process in await slot.processes() for word in process.argv)


async def test_frames_and_shadows_have_references_too(surf: Surfer) -> None:
    await surf.goto("/frames")
    await surf("click", ref=surf.ref('button "Press"'))
    assert 'button "pressed"' in await surf.look()
    await surf("click", ref=surf.ref('button "Deep"'))
    assert await surf.value("document.title") == "8"
    assert len((await surf("snapshot"))["frame_tree"]) == 3
    await surf.goto("/shadow")
    await surf("click", ref=surf.ref("In the shadow"))
    assert "clicked" in await surf.look()


async def test_pages_that_change_themselves(surf: Surfer) -> None:
    await surf.goto("/spa")
    clicked = await surf("click", ref=surf.ref('button "Open"'))
    assert clicked["url"] == f"{HOME}/spa/item"
    with anyio.fail_after(60):
        while "item" not in await surf.look():
            pass
    assert "list again" in (await surf("back"))["snapshot"]
    failed = await surf.fails("click", ref="@e999")
    assert failed.error_kind == "not_found"
    assert "browser_snapshot" in failed.content


async def test_back_press_scroll_images(surf: Surfer) -> None:
    await surf.goto("/")
    images = await surf("get_images")
    assert images == {
        "success": True,
        "images": [{"src": f"{HOME}/pixel.svg", "alt": "a dot", "width": 8, "height": 8}],
        "count": 1,
    }
    await surf("click", ref=surf.ref('link "Form"'))
    assert (await surf("back"))["url"] == f"{HOME}/"
    assert (await surf.fails("back")).error_kind == "not_found"
    await surf.look()
    await surf("press", key="Tab")
    assert (await surf("press", key="Enter"))["url"] == f"{HOME}/form"
    await surf.goto("/scroll")
    for _ in range(4):
        assert (await surf("scroll", direction="down"))["scrolled"] == "down"
    assert await surf.value("scrollY >= 1000") is True
    assert "row 40" in await surf.look()
    await surf("scroll", direction="up")
    assert (await surf.fails("scroll", direction="left")).error_kind == "bad_value"
    assert (await surf.fails("press", key="Nonsense")).error_kind == "browser_error"


async def test_dialogs_wait_for_their_answer(surf: Surfer) -> None:
    await surf.goto("/dialogs")
    asked = await surf("click", ref=surf.ref('button "Confirm"'))
    (pending,) = asked["pending_dialogs"]
    assert (pending["type"], pending["message"]) == ("confirm", "sure?")
    assert "browser_dialog" in asked["hint"]
    held = await surf.fails("click", ref=surf.ref('button "Alert"'))
    assert held.error_kind == "dialog_open"
    assert (await surf("snapshot"))["pending_dialogs"] == [pending]
    handled = await surf("dialog", action="accept", dialog_id=pending["id"])
    assert (handled["handled"], handled["recent_dialogs"][0]["answer"]) == ("accept", "accepted")
    assert await surf.value("document.title") == "said true"
    await surf.look()
    asked = await surf("click", ref=surf.ref('button "Prompt"'))
    assert asked["pending_dialogs"][0]["default_prompt"] == "nobody"
    await surf("dialog", action="accept", prompt_text="me")
    assert await surf.value("document.title") == "said me"
    await surf("click", ref=surf.ref('button "Alert"'))
    await surf("dialog", action="dismiss")
    assert (await surf.fails("dialog", action="accept")).error_kind == "not_found"


async def test_new_tabs_and_windows(surf: Surfer) -> None:
    await surf.goto("/popup")
    clicked = await surf("click", ref=surf.ref("New tab"))
    assert (clicked["new_tab"], len(clicked["tabs"])) == (f"{HOME}/form", 2)
    await surf.look()
    await surf("type", ref=surf.ref('textbox "Name"'), text="in the tab")
    assert (await surf("back"))["url"] == f"{HOME}/popup"
    assert "tabs" not in await surf("snapshot")
    assert (await surf("click", ref=surf.ref("Window")))["new_tab"] == f"{HOME}/shadow"
    assert 'button "In the shadow"' in await surf.look()
    assert (await surf("back"))["url"] == f"{HOME}/popup"
    await surf("click", ref=surf.ref("Clear"))
    assert await surf.look() == "(empty page)"


async def test_files_come_and_go_through_the_slot(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/files")
    (download,) = (await surf("click", ref=surf.ref("Report")))["downloads"]
    assert (download["name"], download["bytes"], download["state"]) == ("report.txt", 11, "completed")
    assert await slot.files.read_bytes(download["path"]) == b"the report\n"
    await slot.files.write_text("up.txt", "from the slot")
    await surf("type", ref=surf.ref('button "File"'), text="up.txt")
    await surf("click", ref=surf.ref('button "Upload"'))
    assert "13 bytes: from the slot" in await surf.look()
    await surf.goto("/files")
    assert (await surf.fails("type", ref=surf.ref('button "File"'), text="none.txt")).error_kind == "not_found"
    (made,) = (await surf("click", ref=surf.ref("Made here")))["downloads"]
    assert (made["name"], made["bytes"]) == ("made.txt", 4)
    downloads = (await surf("navigate", url=f"{HOME}/download"))["downloads"]  # on a slow machine the one before, too
    (direct,) = (download for download in downloads if download["name"] == "report.txt")
    assert direct["path"].endswith("/Downloads/report-2.txt")
    assert direct["path"] != download["path"]


async def test_fields_that_are_no_text(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/fields")
    assert "takes YYYY-MM-DD" in (await surf.fails("type", ref=surf.ref("Day"), text="26.11.2026")).content
    await surf("type", ref=surf.ref("Day"), text="2026-11-26")
    assert await surf.value("document.querySelector('input').value") == "2026-11-26"
    for name in ("one.txt", "two.txt"):
        await slot.files.write_text(name, "12345")
    assert "browser_type" in (await surf("click", ref=surf.ref("Choose")))["file_chooser"]
    assert (await surf.fails("type", ref=surf.ref("Choose"), text="none.txt")).error_kind == "not_found"
    assert "file_chooser" not in await surf("press", key="Shift")
    assert "file_chooser" not in await surf("type", ref=surf.ref("Choose"), text="one.txt")
    assert "one.txt chosen" in await surf.look()
    await surf("type", ref=surf.ref("Framed"), text="two.txt")
    assert "two.txt 5" in await surf.look()


async def test_documents_that_are_no_html(surf: Surfer, slot: Slot) -> None:
    assert (await surf.goto("/pixel.svg"))["snapshot"] == "(empty page)"
    (paper,) = (await surf.goto("/paper.pdf"))["downloads"]
    assert await slot.files.read_bytes(paper["path"]) == b"%PDF-1.1"


async def test_an_action_waits_for_where_it_leads(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    await surf.goto("/files")
    for link in ("Late report", "Saved late"):
        (download,) = (await surf("click", ref=surf.ref(link)))["downloads"]
        assert (download["bytes"], download["state"]) == (11, "completed")
    monkeypatch.setattr(browser, "ARRIVE_S", 1.0)
    slow = await surf("click", ref=surf.ref("Slow"))
    assert slow["not_loaded"] == f"{HOME}/slow"
    monkeypatch.undo()
    assert (await surf("click", ref=surf.ref("Late form")))["url"] == f"{HOME}/form"


async def test_an_action_waits_for_what_scripts_ask_for(changing: Surfer) -> None:
    await changing.goto("/fetching")
    assert "found" in str((await changing("click", ref=changing.ref("Find")))["changes"])
    assert ": more" in str((await changing("click", ref=changing.ref("More")))["changes"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser, "SETTLE_S", 1.0)
        await changing("click", ref=changing.ref("Never"))  # for a while
    assert (await changing("click", ref=changing.ref("Go")))["url"] == f"{HOME}/form"


async def test_what_the_page_logs_and_does_wrong(surf: Surfer) -> None:
    await surf.goto("/console")
    said = await surf("console", clear=True)
    assert [(message["type"], message["text"]) for message in said["console_messages"]] == [
        ("log", "hello 1"),
        ("warning", "careful"),
    ]
    assert [error["message"] for error in said["js_errors"]] == ["it broke"]
    assert (said["total_messages"], said["total_errors"]) == (2, 1)
    assert (await surf("console"))["total_messages"] == 0
    assert await surf.value("[1, {a: null}]") == [1, {"a": None}]
    assert "nonsense is not defined" in (await surf.fails("console", expression="nonsense()")).content


@pytest.mark.whole
async def test_devtools_of_frames(surf: Surfer) -> None:
    await surf.goto("/across")
    frames = (await surf("snapshot"))["frame_tree"]
    assert [(urlsplit(frame["url"]).path, frame["origin"], frame["is_oopif"]) for frame in frames] == [
        ("/across", HOME, False),
        ("/inner", HOME, False),
        ("srcdoc", "", False),
        ("/form", f"http://127.0.0.1:{PORT}", True),
    ]
    assert frames[3]["name"] == "far"
    params = {"expression": "document.title"}
    for frame, title in ((frames[1], "Across"), (frames[3], "Form")):  # each process says what its first frame is
        answer = await surf("cdp", method="Runtime.evaluate", params=params, frame_id=frame["frame_id"])
        assert answer["result"]["result"]["value"] == title
    missing = await surf.fails("cdp", method="Runtime.evaluate", params=params, frame_id="none")
    assert missing.error_kind == "not_found"
    await surf("console", expression="setTimeout(() => alert('held'))")
    await anyio.sleep(0.5)
    with anyio.fail_after(20):
        held = await surf("snapshot")
    assert held["pending_dialogs"][0]["message"] == "held"
    assert [frame["name"] for frame in held["frame_tree"]].count("far") == 1
    with anyio.fail_after(5):
        of_frame = await surf.fails("cdp", method="Runtime.evaluate", params=params, frame_id=frames[3]["frame_id"])
    assert of_frame.error_kind == "dialog_open"


async def test_devtools(surf: Surfer) -> None:
    await surf.goto("/form")
    answer = await surf("cdp", method="Runtime.evaluate", params={"expression": "1 + 1"})
    assert answer["result"]["result"]["value"] == 2
    long = {"expression": f"'{'x' * 3_000_000}'.length"}
    assert (await surf("cdp", method="Runtime.evaluate", params=long))["result"]["result"]["value"] == 3_000_000
    for refused in ("Browser.close", "Browser.setDownloadBehavior", "Page.setDownloadBehavior", "Fetch.enable"):
        assert (await surf.fails("cdp", method=refused)).error_kind == "blocked_by_policy"
    assert (await surf.fails("cdp", method="No.such")).error_kind == "browser_error"
    assert (await surf.fails("cdp", method="Page.enable", target_id="none")).error_kind == "not_found"
    slow = {"expression": "new Promise(() => {})", "awaitPromise": True}
    assert (await surf.fails("cdp", method="Runtime.evaluate", params=slow, timeout=1)).error_kind == "timeout"


async def test_a_screenshot(changing: Surfer, slot: Slot) -> None:
    await changing.goto("/canvas")
    result = await changing.call("vision", question="which colour?", annotate=False)
    (image,) = result.images
    assert image.startswith(b"\x89PNG")
    assert await slot.files.read_bytes(str(result.data["screenshot_path"])) == image
    await changing.goto("/form")
    result = await changing.call("vision", question="where?", annotate=True)
    named = {str(each["element"]): each["ref"] for each in result.data["annotations"]}  # type: ignore[attr-defined]
    assert named['button "Send"'] == changing.ref('button "Send"')
    assert "generic" not in named
    assert await changing.value("document.getElementById('hermes-annotations')") is None


FRAMED = """(() => { const [frame] = document.querySelectorAll('iframe');
const corner = frame.getBoundingClientRect(), button = frame.contentDocument.querySelector('button');
const box = button.getBoundingClientRect();
return [corner.x + 23 + box.x, corner.y + 23 + box.y, box.width, box.height]; })()"""


async def test_what_is_scrolled_out_of_sight_is_not_annotated_and_what_is_in_a_frame_where_it_is(
    changing: Surfer,
) -> None:
    await changing.goto("/crowded")
    seen = await changing("vision", question="where?", annotate=True)
    boxes = {each["element"]: each["box"] for each in seen["annotations"]}
    items = [name for name in boxes if name.startswith('link "item ')]
    assert 2 <= len(items) < 6, items
    assert 'link "item 29"' in await changing.look()
    assert boxes["link"] == boxes['img "a dot"']
    assert boxes['button "Framed"'] == pytest.approx(await changing.value(FRAMED), abs=1)
    below = await changing.value("document.querySelector('button').getBoundingClientRect().y")
    assert all(box[1] + box[3] <= below for name, box in boxes.items() if name in items)


async def test_what_an_action_changed(changing: Surfer) -> None:
    await changing.goto("/shadow")
    clicked = await changing("click", ref=changing.ref("In the shadow"))
    changes = str(clicked["changes"]).splitlines()
    assert any(line.startswith("-") and line.endswith('"0"') for line in changes), changes
    assert any(line.startswith("+") and line.endswith("clicked") for line in changes)


async def test_what_a_web_socket_answered(changing: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    await changing.goto("/live")
    with anyio.fail_after(60):
        while "hello 2" not in await changing.look():
            pass
    monkeypatch.setattr(navigation, "SOCKET_S", 3.0)
    for _ in range(3):
        assert "again 2" in (await changing("click", ref=changing.ref("Ask")))["changes"]


async def test_a_page_that_changed_as_a_whole_is_told_once(changing: Surfer) -> None:
    await changing.goto("/popup")
    changes = (await changing("click", ref=changing.ref("New tab")))["changes"]
    assert changes == f"(most of it; the page is now:)\n{await changing.look()}"


async def test_a_huge_page_is_cut_with_the_rest_in_a_file(surf: Surfer, slot: Slot) -> None:
    opened = await surf.goto("/huge")
    assert len(opened["snapshot"]) < 15_500
    assert opened["element_count"] == 20_000
    path = opened["snapshot"].partition("read_file(path='")[2].partition("'")[0]
    assert "button 19999" in await slot.files.read_text(path)
    offset = int(opened["snapshot"].partition("offset=")[2].rstrip(")]"))
    read = await surf.toolbox.call("read_file", {"path": path, "offset": offset, "limit": 1})
    assert str(read.data["content"]).partition("|")[2] not in opened["snapshot"]


async def test_page_too_large_for_a_snapshot_is_told(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_ELEMENTS", 10_000)
    told = await surf.fails("navigate", url=f"{HOME}/huge")
    assert (told.error_kind, told.data["not_loaded"]) == ("too_large", f"{HOME}/huge")
    assert "browser_console" in told.content
    assert await surf.value("document.querySelectorAll('button').length") == 20_000


async def test_pages_that_never_load(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "NAVIGATION_S", 5.0)
    await surf.goto("/form")
    assert (await surf.fails("navigate", url=f"{HOME}/slow")).error_kind == "timeout"
    monkeypatch.undo()
    clicked = await surf("click", ref=surf.ref("checkbox"))
    assert "not_loaded" not in clicked  # the page before is there, and nothing is waited for
    assert (await surf.fails("navigate", url="http://localhost:65001/")).error_kind == "browser_error"
    assert "ERR_CONNECTION_REFUSED" in surf.results[-1].content
    await surf.goto("/form")
    assert "Send" in surf.snapshot


async def test_a_page_that_hangs_or_crashes_is_told(surf: Surfer, monkeypatch: pytest.MonkeyPatch) -> None:
    await surf.goto("/hang")
    monkeypatch.setattr(tools, "ACTION_S", 5.0)
    monkeypatch.setattr(results, "ACTION_S", 2.0)
    hung = await surf.fails("click", ref=surf.ref('button "Hang"'))
    assert (hung.error_kind, "browser_navigate" in hung.content) == ("timeout", True)
    assert "does not respond" in (await surf.fails("snapshot")).content
    monkeypatch.undo()
    monkeypatch.setattr(browser, "ANSWER_S", 3.0)
    assert "Form" in (await surf.goto("/form"))["title"]
    await surf.call("navigate", url="chrome://crash")
    assert surf.results[-1].error_kind == "blocked_by_policy"
    await surf.call("cdp", method="Page.crash", timeout=2)
    crashed = await surf.fails("snapshot")
    assert (crashed.error_kind, "browser_navigate" in crashed.content) == ("page_crashed", True)
    assert (await surf.goto("/form"))["title"] == "Form"


async def test_a_page_that_eats_its_memory(docker_image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    require_engine("docker")
    monkeypatch.setattr(tools, "ACTION_S", 60.0)  # the kernel may look for memory for longer than an action has
    pool = SandboxPool("docker", image=docker_image("browser"), network=False, limits=Limits(memory_mb=700))
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        await serve_site(slot)
        surf = Surfer(toolbox)
        await surf.goto("/eater")
        eaten = await surf.fails("click", ref=surf.ref('button "Eat"'))
        assert (eaten.error_kind, "browser_navigate" in eaten.content) == ("page_crashed", True)
        assert (await surf.goto("/form"))["title"] == "Form"


async def test_a_browser_that_dies_is_started_anew(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/form")
    await slot.run("pkill -9 -f remote-debugging-pipe")
    await until(lambda: browser_of_slot(slot).running is None)
    seen = await surf("snapshot")
    assert (seen["url"], seen["warning"]) == ("about:blank", "the browser ended: its tabs and cookies are gone")
    assert (await surf.goto("/form"))["title"] == "Form"


async def test_a_reset_leaves_nothing(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/cookie")
    await surf.goto("/files")
    await surf("click", ref=surf.ref("Report"))
    assert await of_the_browser(slot)
    await slot.reset()
    assert await of_the_browser(slot) == []
    await serve_site(slot)
    await surf.goto("/form")
    assert await surf.value("document.cookie + localStorage.who") == "undefined"


async def test_closing_leaves_no_process_and_no_profile(surf: Surfer, slot: Slot) -> None:
    await surf.goto("/cookie")
    assert (await surf("close"))["closed"] is True
    assert await of_the_browser(slot) == []
    assert (await surf("close"))["closed"] is True
    await surf.goto("/form")
    assert await surf.value("document.cookie + localStorage.who") == "undefined"


async def test_neighbours_do_not_reach_each_others_browser(pool: SandboxPool, surf: Surfer, slot: Slot) -> None:
    await surf.goto("/cookie")
    async with pool.slot() as other:
        seen = await other.run("ps -ef | grep -c remote-debuggin[g]")
        assert seen.stdout == "0\n"
        refused = await other.run(
            ["python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 2)"]
        )
        assert refused.exit_code != 0
    assert await surf.value("document.cookie") == "who=me"
    listening = await slot.run("awk '$4 == \"0A\" { print $2 }' /proc/net/tcp /proc/net/tcp6")
    assert listening.stdout == f"0100007F:{PORT:04X}\n"  # the site alone


async def test_unused_browsers_are_ended(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> None:
    pool = browser_pool(request, docker_image, browser={"inactivity_timeout_s": 3})
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        await serve_site(slot)
        surf = Surfer(toolbox)

        async def opened_and_ended() -> None:
            await surf.goto("/form")
            for _ in range(300):
                if not await of_the_browser(slot):
                    break
                await anyio.sleep(0.1)
            assert await of_the_browser(slot) == []

        await surf.goto("/form")
        running = await browser_of_slot(slot).ensure_running()
        began = anyio.current_time()
        await surf("console", expression="new Promise(done => setTimeout(done, 500))")
        assert running.used_at >= began + 0.5  # a call is use until its end
        await opened_and_ended()
        told = await surf.fails("click", ref=surf.ref("Send"))
        assert (told.error_kind, "after 3 s without use" in str(told.data["warning"])) == ("not_found", True)
        assert "warning" not in await surf.goto("/form")
        await opened_and_ended()
        opened = await surf.goto("/form")
        assert "after 3 s without use" in opened["warning"]


async def test_a_start_that_nobody_waits_for_leaves_nothing_on_this_host(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="hermes-test-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        pool = browser_pool(request, docker_image)
        async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
            for wait_s in (0.1, 0.3, 0.6):
                with anyio.move_on_after(wait_s):
                    await toolbox.call("browser_navigate", {"url": "about:blank"})
            await slot.reset()
            opened = await toolbox.call("browser_navigate", {"url": "about:blank"})
            assert opened.ok, opened.content
            assert await fewer_with(f"{directory}/hermes-devtools", 2)
        assert await fewer_with(f"{directory}/hermes-devtools", 1)
        assert [entry async for entry in anyio.Path(directory).glob("hermes-devtools*")] == []


async def test_a_temporary_directory_with_a_long_name(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / ("x" * 100)
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    pool = browser_pool(request, docker_image)
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        opened = await toolbox.call("browser_navigate", {"url": "about:blank"})
        assert opened.ok, opened.content


async def test_eight_at_once(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> None:
    async def one(pool: SandboxPool) -> None:
        async with pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
            await serve_site(slot)
            surf = Surfer(toolbox)
            await surf.goto("/form")
            await surf("type", ref=surf.ref('textbox "Name"'), text="me")
            await surf("click", ref=surf.ref('button "Send"'))
            assert "name=me" in await surf.look()

    async with (
        browser_pool(request, docker_image, slots_per_sandbox=8) as pool,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(8):
            tasks.start_soon(one, pool)


async def test_an_image_without_a_browser_is_told(docker_image: Callable[[str], str]) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), max_sandboxes=1) as pool, pool.slot() as slot:
        async with Toolbox(slot, ["browser"]) as toolbox:
            failed = await toolbox.call("browser_navigate", {"url": "about:blank"})
        assert failed.error_kind == "no_browser", failed.content


async def test_the_end_of_the_sandbox_is_no_result(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    import docker

    async with (
        SandboxPool("docker", image=docker_image("browser"), network=False, max_sandboxes=1) as pool,
        pool.slot() as slot,
        Toolbox(slot, TOOLSETS) as toolbox,
    ):
        opened = await toolbox.call("browser_navigate", {"url": "about:blank"})
        assert opened.ok, opened.content
        with contextlib.closing(docker.from_env()) as client:
            client.api.kill(slot.sandbox)
        with pytest.raises(ExecError):
            for _ in range(100):
                await toolbox.call("browser_snapshot", {})
                await anyio.sleep(0.1)
