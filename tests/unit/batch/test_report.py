"""report.html: everything that a model or a program wrote is text in it, and nothing outside of the file is needed."""

from __future__ import annotations

import json
import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_batch import write_report
from hermes_batch.report.html import Markup, element, escape, make_visible
from hermes_exec.errors import ConfigError

EVIL = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m\x00 \u202egnp \" ' &amp;"
)


class Page(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "input", "br", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def record(index: int, **more: Any) -> dict[str, Any]:
    call = json.dumps({"name": "terminal", "arguments": {"command": EVIL}})
    response = json.dumps(
        {"tool_call_id": "1", "name": "terminal", "content": {"output": EVIL, "exit_code": 2, "error": EVIL}}
    )
    return {
        "prompt_index": index,
        "id": EVIL,
        "conversations": [
            {"from": "system", "value": EVIL},
            {"from": "human", "value": EVIL},
            {
                "from": "gpt",
                "value": f"<think>\n{EVIL}\n</think>\n{EVIL}\n<tool_call>\n{call}\n</tool_call>\n"
                f"<tool_call>{EVIL}</tool_call>",
            },
            {"from": "tool", "value": f"<tool_response>\n{response}\n</tool_response>"},
        ],
        "metadata": {"timestamp": EVIL, "model": EVIL},
        "finish": EVIL,
        "cause": EVIL,
        "trainable": True,
        "solved": False,
        "check": {"exit_code": 1, "timed_out": False, "output": EVIL},
        "turns": 1,
        "tool_calls": 1,
        "seconds": 1.5,
        "errors": [{"turn": 1, "where": EVIL, "kind": EVIL, "message": EVIL}],
        "isolation": EVIL,
        "sandbox": EVIL,
        **more,
    }


def report(directory: Path, *records: object, **settings: object) -> Page:
    lines = (line if isinstance(line, str) else json.dumps(line) for line in records)
    (directory / "trajectories.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if settings:
        (directory / "run.json").write_text(json.dumps(settings))
    return Page(write_report(directory).read_text("utf-8"))


def test_nothing_that_was_written_is_markup(tmp_path: Path) -> None:
    page = report(tmp_path, record(0), model=EVIL, prompts=1, seconds=3)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "link", "a", "object", "base", "form"}
    assert page.open == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page.text)
    assert "␛[31mred␛[0m␀ \\u202egnp" in page.text


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    page = report(tmp_path, record(0))
    assert not any(
        name in {"src", "href", "action", "background"} for _, attributes in page.tags for name in attributes
    )
    policies = [
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert not re.search(r"url\(|@import", (tmp_path / "report.html").read_text("utf-8"))


def test_summary_and_failures_by_cause(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"finish": "answered", "cause": "policy", "id": "t"}
    infra: dict[str, Any] = {**plain, "finish": "infra", "cause": "infra", "trainable": False, "solved": None}
    page = report(
        tmp_path,
        *(record(0, **plain, solved=True), record(1, **plain), record(2, **plain), record(3, **infra)),
        prompts=6,
        seconds=9.25,
    )
    for text in ("1 of 3", "of 6 prompts", "9.2 s", "solved 1", "unsolved 2", "unscored 1", "before 2 of its prompts"):
        assert text in page.text
    assert re.search(r"policythe modelanswered2", page.text)
    assert re.search(r"infrathe sandbox, the stream or this libraryinfra1", page.text)


def test_reasons_of_unscored_prompts(tmp_path: Path) -> None:
    def unscored(index: int, message: str) -> dict[str, Any]:
        error = {"turn": 1, "where": "infra", "kind": "SandboxDied", "message": message}
        return record(index, id=f"p{index}", errors=[error], trainable=False, solved=None)

    page = report(tmp_path, record(0, errors=[], solved=True), unscored(1, "out of memory"), unscored(2, "removed"))
    assert "Not scored, by errorErrorFirst messagePromptsSandboxDiedout of memory2" in page.text
    assert page.text.count("SandboxDied: out of memory") == page.text.count("SandboxDied: removed") == 1
    assert "Not scored" not in report(tmp_path, record(0, solved=True)).text


def test_code_snapshots_and_screenshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(name: str, arguments: dict[str, Any], content: dict[str, Any]) -> list[dict[str, str]]:
        asked = json.dumps({"name": name, "arguments": arguments})
        response = json.dumps({"tool_call_id": name, "name": name, "content": content})
        return [
            {"from": "gpt", "value": f"<tool_call>\n{asked}\n</tool_call>"},
            {"from": "tool", "value": f"<tool_response>\n{response}\n</tool_response>"},
        ]

    output = "\n".join(f"printed {n}" for n in range(13))
    done = {"output": output, "exit_code": 0, "status": "success", "tool_calls": ["terminal 0.01 s"], "error": None}
    turns = [
        *call("execute_code", {"code": "\n".join(f"a = {n}" for n in range(20))}, done),
        *call("browser_snapshot", {}, {"url": "http://x", "snapshot": "- button\n- link"}),
        *call("browser_vision", {"question": "?"}, {"screenshot_path": "/tmp/s.png"}),
    ]
    evil = 'screenshots/"><script>alert(1)<script>/0-3.png'
    paths = ("screenshots/0-1.png", "screenshots/0-2.png", evil, "../../etc/passwd")
    shots = [{"tool_call_id": "browser_vision", "path": path} for path in paths]
    (tmp_path / "screenshots").mkdir()
    (tmp_path / paths[0]).write_bytes(b"\x89PNG")
    (tmp_path / "screenshots" / "0-3.png").write_bytes(b"")
    (tmp_path / paths[1]).write_bytes(b"\x89PNG and more than is left")
    monkeypatch.setattr("hermes_batch.report.images._MAX_BYTES", 10)
    page = report(tmp_path, record(0, conversations=turns, screenshots=shots))
    folded = [attributes for tag, attributes in page.tags if tag == "details" and attributes.get("class") == "folded"]
    assert folded == [*[{"class": "folded"}] * 2, {"class": "folded", "open": ""}, *[{"class": "folded"}] * 2]
    shown = ("Code, 20 lines", "Output, 13 lines", "terminal 0.01 s", "Snapshot, 2 lines", "- button\n- link")
    assert [text in page.text for text in shown] == [True] * 5
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert images == [
        {"alt": paths[0], "src": "data:image/png;base64,iVBORw=="},
        {"alt": evil, "src": "data:image/png;base64,"},
    ]
    assert f"in {paths[1]}" in page.text
    assert page.text.count("is missing") == 1


def test_half_a_line_is_left_out_and_counted(tmp_path: Path) -> None:
    page = report(tmp_path, record(0), '{"prompt_index": 1, "conv', "[]", '{"prompt_index": 2}')
    assert "3 lines of trajectories.jsonl are not records" in page.text


def test_long_texts_are_cut_in_the_middle(tmp_path: Path) -> None:
    long = record(0, conversations=[{"from": "human", "value": "a" * 50_000 + "end"}])
    assert "characters left out" in report(tmp_path, long).text


def test_one_record_is_held_at_a_time(tmp_path: Path) -> None:
    text, records = "a" * 100_000, 200
    lines = (record(n, conversations=[{"from": "human", "value": text}]) for n in range(records))
    (tmp_path / "trajectories.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tracemalloc.start()
    try:
        write_report(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < records * len(text) / 8


def test_no_trajectories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no trajectories\.jsonl"):
        write_report(tmp_path)


@given(st.text())
def test_escaped_text_comes_back_as_it_is_shown(text: str) -> None:
    page = Page(element("p", text, title=text))
    assert page.text == make_visible(text)
    assert page.tags == [("p", {"title": make_visible(text)})]


def test_markup_is_not_escaped_again() -> None:
    assert escape(Markup("<b>")) == "<b>"
    assert escape("<b>") == "&lt;b&gt;"
