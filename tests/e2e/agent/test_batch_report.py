"""report.html in a browser, from a file: its list, its conversations, its width, and what hostile texts can do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import write_report
from tests.conftest import BROWSERS, require_engine
from tests.unit.batch.test_report import EVIL, record

pytestmark = pytest.mark.chromium
WIDTHS = (1280, 390)


@contextmanager
def open_report(out: Path, width: int) -> Iterator[Any]:
    """Open the report of a run from its file, without network, and yield the page once its list is there."""
    require_engine("chromium")
    api = pytest.importorskip("playwright.sync_api")
    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.failures, page.requests = [], []
        page.on("pageerror", lambda error: page.failures.append(str(error)))
        page.on("dialog", lambda dialog: page.failures.append(dialog.message))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(write_report(out).as_uri())
        page.wait_for_selector("#list > details")
        yield page
        browser.close()


def write_run(out: Path, *records: dict[str, Any]) -> None:
    (out / "trajectories.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in records))
    (out / "run.json").write_text(json.dumps({"model": "m", "prompts": len(records), "seconds": 12_345}))


def make_run(out: Path) -> None:
    """Write the records of 150 prompts with two samples each."""
    words, plain = ("solved", "unsolved", "unscored"), {"finish": "answered", "cause": "policy", "errors": []}
    records = []
    for number in range(300):
        prompt, sample = divmod(number, 2)
        turns = [{"from": "human", "value": f"the task of {prompt}"}, {"from": "gpt", "value": f"the answer {number}"}]
        facts = {"id": f"p{prompt}", "group": f"g{prompt}", "sample": sample, "conversations": turns}
        word = words[number % 3]
        facts |= {"solved": word, "trainable": word != "unscored", "prompt_tokens": 10_000_000 + number, "cost": 1.5}
        calls = [{"name": "terminal", "ok": number != 7, "error_kind": "timeout" if number == 7 else None}]
        records.append(record(prompt, **{**plain, "calls": calls, **facts}))
    write_run(out, *records)


@pytest.mark.parametrize("width", WIDTHS)
def test_report_lists_searches_sorts_and_filters(tmp_path: Path, width: int) -> None:
    make_run(tmp_path)
    with open_report(tmp_path, width) as page:
        assert page.inner_text("#count") == "300 records"
        assert page.locator("#list > details").count() == 150
        group = page.locator("#list > details").first
        assert group.locator(".badge").first.inner_text() == "1 of 2"
        group.locator("summary").first.click()
        group.locator(".episode summary").nth(1).click()
        assert "the answer 1" in group.locator(".transcript").inner_text()
        page.uncheck("#grouped")
        assert page.locator("#list > details").count() == 200
        page.click("#more")
        assert (page.locator("#list > details").count(), page.locator("#more").is_visible()) == (300, False)
        page.fill("#search", "p14 TASK")
        assert page.inner_text("#count") == "22 of 300 records"  # p14 and p140 to p149
        page.fill("#search", "")
        page.click("label[for=show-unscored]")
        assert page.inner_text("#count") == "100 of 300 records"
        page.click("label[for=show-]")
        page.select_option("#sort", "tokens")
        assert page.locator("#list > details code").first.inner_text() == "p149 #1"
        page.select_option("#error", "timeout")
        assert page.locator("#list > details code").all_inner_texts() == ["p3 #1"]
        assert page.failures == []


@pytest.mark.parametrize("width", WIDTHS)
def test_report_fits_its_width(tmp_path: Path, width: int) -> None:
    make_run(tmp_path)
    with open_report(tmp_path, width) as page:
        for details in (page.locator("#list > details").first, page.locator("#list .episode").first):
            details.locator("summary").first.click()
        page.wait_for_selector(".transcript")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        too_wide = (
            "[...document.querySelectorAll('.card b, .facts span')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
        )
        assert page.evaluate(f"{too_wide}.map((e) => e.textContent)") == []
        lines = "[...document.querySelectorAll('.card b')].map((e) => e.getClientRects().length * e.offsetHeight)"
        assert max(page.evaluate(lines)) < 40


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    write_run(tmp_path, record(0, trainable=False, solved=None), record(1))
    with open_report(tmp_path, 1280) as page:
        for number in range(2):
            page.locator("#list > details").nth(number).locator("summary").first.click()
        page.wait_for_selector(".transcript >> nth=1")
        assert EVIL[:40] in page.locator("#list").inner_text()
        assert page.locator("#list script, #list img").count() == 0
        assert page.requests == [(tmp_path / "report.html").as_uri()]
        assert page.failures == []
        page.evaluate("document.querySelector('#list').innerHTML = '<img src=x onerror=\"document.title=1\">'")
        assert page.title() == f"Batch run {tmp_path.name}"
