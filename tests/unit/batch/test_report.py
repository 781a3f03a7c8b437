"""report.html: everything that a model or a program wrote is text in it, and nothing outside of the file is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tracemalloc
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_batch import write_report
from hermes_batch.report.html import Markup, element, escape, make_visible
from hermes_exec.errors import ConfigError
from tests.support.report_page import read_report

SCRIPT = Path(write_report.__code__.co_filename).with_name("report.js")
NAMES = json.loads(SCRIPT.read_text("utf-8").split("const NAMES = ", 1)[1].split(";", 1)[0])

EVIL = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m\x00 \u202egnp \" ' &amp;"
)


class Page(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, source: str, rows: Sequence[Sequence[Any]] = ()) -> None:
        super().__init__()
        self.rows = [dict(zip(NAMES, row, strict=True)) for row in rows]
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
        if self.open[-1:] not in (["style"], ["script"]):
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
    parts = read_report(write_report(directory))
    return Page(parts.page + "".join(parts.transcripts), parts.rows)


def test_nothing_that_was_written_is_markup(tmp_path: Path) -> None:
    program = {"program": EVIL, "program_exit_code": 1, "program_output": EVIL}
    page = report(tmp_path, record(0, **program), model=EVIL, prompts=1, seconds=3)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "iframe", "link", "a", "object", "base", "form"}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
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
    source = (tmp_path / "report.html").read_text("utf-8")
    script = source[source.index("<script>") + len("<script>") : source.index("</script>", source.index("<script>"))]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
    ]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", source)


def test_summary_and_failures_by_cause(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"finish": "answered", "cause": "policy", "id": "t"}
    infra: dict[str, Any] = {**plain, "finish": "infra", "cause": "infra", "trainable": False, "solved": None}
    page = report(
        tmp_path,
        *(record(0, **plain, solved=True), record(1, **plain), record(2, **plain), record(3, **infra)),
        prompts=6,
        seconds=9.25,
    )
    for text in ("1 of 3", "4 of 6done", "9 s", "solved 1", "unsolved 2", "unscored 1", "before 2 of its prompts"):
        assert text in page.text
    assert re.search(r"policythe modelanswered2", page.text)
    assert re.search(r"infrathe sandbox, the stream or this libraryinfra1", page.text)


def test_reasons_of_unscored_prompts(tmp_path: Path) -> None:
    def unscored(index: int, message: str) -> dict[str, Any]:
        error = {"turn": 1, "where": "infra", "kind": "SandboxDied", "message": message}
        return record(index, id=f"p{index}", errors=[error], trainable=False, solved=None)

    page = report(tmp_path, record(0, errors=[], solved=True), unscored(1, "out of memory"), unscored(2, "removed"))
    assert "Unscored, by errorErrorFirst messageRecordsSandboxDiedout of memory2" in page.text
    assert [row["why"] for row in page.rows] == ["", "SandboxDied: out of memory", "SandboxDied: removed"]
    assert "Unscored" not in report(tmp_path, record(0, solved=True)).text


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


def test_program_has_its_name_exit_code_and_output(tmp_path: Path) -> None:
    ended = {"program": "mini-swe-agent", "finish": "answered"}
    failed = record(0, **ended, program_exit_code=3, program_output="Traceback: no such key\n")
    page = report(tmp_path, failed, record(1, **ended, program_exit_code=0, program_output="")).text
    assert "program mini-swe-agent" in page
    assert "1 program failed after an answer: the exit code and the output are in the record." in page
    assert "The program ended with exit code 3:" in page
    assert "Output, 1 lineTraceback: no such key" in page
    assert "The program ended with exit code 0 and printed nothing." in page
    assert "The program ended" not in report(tmp_path, record(0)).text


def test_run_without_records_has_a_report(tmp_path: Path) -> None:
    page = report(tmp_path, prompts=6)
    assert page.rows == []
    assert "The run ended before 6 of its prompts were done." in page.text
    assert "0 of 0solved" in page.text


def test_half_a_line_is_left_out_and_counted(tmp_path: Path) -> None:
    page = report(tmp_path, record(0), '{"prompt_index": 1, "conv', "[]", '{"prompt_index": 2}')
    assert "3 lines of trajectories.jsonl are not records" in page.text


def test_list_has_every_record_and_only_conversations_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_batch.report.report._MAX_TRANSCRIPT_BYTES", 1)
    page = report(tmp_path, *(record(index, id=f"p{index}") for index in range(3)))
    assert [(row["id"], row["transcript"]) for row in page.rows] == [("p0", 0), ("p1", -1), ("p2", -1)]
    assert "The conversations of the last records are only in trajectories.jsonl" in page.text
    line = (tmp_path / "trajectories.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert page.rows[1]["place"] == f"trajectories.jsonl, at byte {len(line):,}"


def test_files_and_differences_are_shown_as_text(tmp_path: Path) -> None:
    edits = [{"old_string": "one\ntwo", "new_string": "three"}]
    call = json.dumps({"name": "patch", "arguments": {"path": "a.py", "edits": edits}})
    responses = (
        {"content": "1|import re\n2|x = 1", "total_lines": 2},
        {"success": True, "diff": "--- a/a.py\n+++ b/a.py\n-one\n+three\n"},
        {"matches": [{"path": "a.py", "line": 1, "content": "x = 1\ny = 2"}]},
    )
    turns = [{"from": "gpt", "value": f"<tool_call>\n{call}\n</tool_call>"}]
    for number, content in enumerate(responses):
        response = json.dumps({"tool_call_id": str(number), "name": "patch", "content": content})
        turns.append({"from": "tool", "value": f"<tool_response>\n{response}\n</tool_response>"})
    text = report(tmp_path, record(0, conversations=turns)).text
    for lines in ("one\ntwo", "1|import re\n2|x = 1", "File, 2 lines", "+++ b/a.py\n-one\n+three", "x = 1\ny = 2"):
        assert lines in text
    assert "\\n" not in text


def test_tools_errors_and_figures_are_counted(tmp_path: Path) -> None:
    calls = [
        {"name": "terminal", "ok": True, "duration_s": 1.0},
        {"name": "terminal", "ok": False, "error_kind": "timeout", "duration_s": 2.0},
        {"name": "patch", "ok": False, "error_kind": EVIL, "duration_s": 0.0},
    ]
    facts = {"prompt_tokens": 1000, "completion_tokens": 200, "cost": 0.5, "calls": calls}
    page = report(tmp_path, *(record(index, **facts) for index in range(2)))
    assert "terminal2 (50.0 %)1.50 s4" in page.text
    assert "terminaltimeout2" in page.text
    assert f"patch{make_visible(EVIL)}2" in page.text
    for title in ("Turns median 1", "Tokens median 1.20k", "Seconds median 2 s", "Cost median 0.50"):
        assert title in page.text
    assert (page.rows[0]["tokens"], page.rows[0]["cost"], page.rows[0]["calls"]) == (1200, 0.5, 1)
    assert "timeout" in page.rows[0]["errors"]


def test_samples_have_estimates_and_a_control_that_groups_them(tmp_path: Path) -> None:
    samples = (record(0, group="g", sample=n, solved=("solved", "unsolved")[n], reward=1.0 - n) for n in range(2))
    page = report(tmp_path, *samples)
    assert "pass@10.500-1" in page.text
    assert "pass@21.000-1" in page.text
    assert {attributes.get("id") for tag, attributes in page.tags if tag == "input"} >= {"search", "grouped"}
    assert [(row["group"], row["sample"], row["reward"]) for row in page.rows] == [("g", 0, 1.0), ("g", 1, 0.0)]


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
