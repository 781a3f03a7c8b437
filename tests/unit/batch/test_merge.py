"""Merged runs: each prompt and sample once, with files that do not collide."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import merge_runs, read_records
from hermes_batch.index import index_fits
from hermes_batch.trajectories import Trajectories, read_rows
from hermes_exec.errors import ConfigError, ExecError
from tests.unit.batch.exporting import CommandLine, make_row, write_run
from tests.unit.batch.test_columns import OLD

pytestmark = pytest.mark.anyio
A, B = "a" * 32, "b" * 32
Row = dict[str, Any]
BAD: Row = {"trainable": False, "solved": "unscored", "reward": "null"}


async def row(group: str, sample: int = 0, **fields: Any) -> Row:
    made, _ = await make_row("short", group=group, sample=sample, **fields)
    return made


async def picture(group: str, sample: int, path: str, **fields: Any) -> Row:
    """Return a record with an image at a path."""
    image = {"type": "image_url", "image_url": {"url": path}}
    far = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": path}, image, far]}]
    shots = [{"tool_call_id": "", "path": path}]
    return await row(group, sample, messages=json.dumps(messages), screenshots=json.dumps(shots), **fields)


def settings(run: Path, **config: Any) -> None:
    facts = {
        "model": "m",
        "backend": "local",
        "prompts": 2,
        "records": 2,
        "seconds": 1.5,
        "config": config,
        "again": [],
    }
    (run / "run.json").write_text(json.dumps(facts))


def keys(out: Path) -> list[tuple[str, int, str]]:
    return [(record["group"][0], record["sample"], record["id"]) for record in read_records(out)]


async def test_each_prompt_and_sample_is_there_once(tmp_path: Path) -> None:
    first: list[Row | bytes] = [
        await row(A, id="1"),
        await row(A, 1, id="2", **BAD),
        b"half\n",
        await row(B, id="3", **BAD),
    ]
    second = [await row(A, id="4"), await row(A, 1, id="5"), await row(B, id="6", **BAD), await row(f"{A}-1", id="7")]
    runs = [write_run(tmp_path / "x", first), write_run(tmp_path / "y", second)]
    result = merge_runs(tmp_path / "out", runs)
    assert keys(tmp_path / "out") == [("a", 0, "1"), ("b", 0, "3"), ("a", 1, "5"), ("a", 0, "7")]
    assert (result.records, result.doubles, result.renumbered, result.resumable) == (4, 3, 0, False)
    assert dict(result.by_run) == {str(runs[0]): 2, str(runs[1]): 2}
    assert index_fits(tmp_path / "out")
    assert len(read_rows(tmp_path / "out")[0]) == 4
    assert (tmp_path / "out" / "report.html").exists()
    assert sorted(os.listdir(tmp_path)) == ["out", "x", "y"]


async def test_doubles_become_further_samples(tmp_path: Path) -> None:
    first = [await row(A, id="1"), await row(A, 1, id="2"), await row(B, id="3")]
    second = [await row(A, id="4"), await row(A, 1, id="5"), await row(B, id="6", **BAD), await row(A, 3, id="7")]
    runs = [write_run(tmp_path / "x", first), write_run(tmp_path / "y", second)]
    result = merge_runs(tmp_path / "out", runs, as_samples=True)
    assert (result.records, result.doubles, result.renumbered) == (6, 1, 2)
    assert sorted(keys(tmp_path / "out")) == [
        *[("a", n, str(name)) for n, name in enumerate([1, 2])],
        *[("a", 3, "7"), ("a", 4, "4"), ("a", 5, "5"), ("b", 0, "3")],
    ]


async def test_files_do_not_collide(tmp_path: Path) -> None:
    shot = "screenshots/0-1.png"
    artifact = "artifacts/task-0011aabb-0/sub/out.txt"
    runs = []
    for name in ("x", "y"):
        run = write_run(tmp_path / name, [await picture(A, 0, shot, artifacts=json.dumps([artifact]), id=name)])
        for path in (shot, artifact):
            (run / path).parent.mkdir(parents=True)
            (run / path).write_text(f"{name} {path}")
        runs.append(run)
    merge_runs(tmp_path / "out", runs, as_samples=True)
    for record, name in zip(read_records(tmp_path / "out"), "xy", strict=True):
        (screenshot,), (path,) = json.loads(record["screenshots"]), json.loads(record["artifacts"])
        parts = json.loads(record["messages"])[0]["content"]
        assert parts[1]["image_url"]["url"] == screenshot["path"]
        assert parts[2]["image_url"]["url"] == "https://example.com/a.png"
        assert (tmp_path / "out" / screenshot["path"]).read_text() == f"{name} {shot}"
        assert (tmp_path / "out" / path).read_text() == f"{name} {artifact}"
        assert path == f"artifacts/task-0011aabb-{record['sample']}/sub/out.txt"


async def test_files_outside_of_a_run_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_text("secret")
    bad = ["../secret.png", "/etc/passwd", "screenshots/../../secret.png", "screenshots/link.png", "screenshots/no.png"]
    records = [await picture(A, n, path, artifacts=json.dumps([f"artifacts/{path}"])) for n, path in enumerate(bad)]
    run = write_run(tmp_path / "x", records)
    (run / "screenshots").mkdir()
    (run / "screenshots" / "link.png").symlink_to(tmp_path / "secret.png")
    merge_runs(tmp_path / "out", [run])
    assert [json.loads(record["screenshots"])[0]["path"] for record in read_records(tmp_path / "out")] == bad
    assert not {*(tmp_path / "out").iterdir()} & {tmp_path / "out" / "screenshots", tmp_path / "out" / "artifacts"}


async def test_records_of_earlier_versions_are_upgraded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [{**OLD, "screenshots": []}, await row(A)])
    merge_runs(tmp_path / "out", [run])
    lines = [json.loads(line) for line in (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()]
    assert lines == [*read_records(run)]


@pytest.mark.parametrize(
    ("second", "merged"),
    [
        (
            {"model": "m", "shard": "2/2", "samples": 4, "seed": 3},
            {"model": "m", "samples": 4, "seed": 3, "workers": 8},
        ),
        ({"model": "other", "shard": "2/2", "samples": 4, "seed": 3}, None),
    ],
)
async def test_settings_that_agree_are_resumable(
    tmp_path: Path, second: dict[str, Any], merged: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [write_run(tmp_path / name, [await row(group)]) for name, group in (("x", A), ("y", B))]
    settings(runs[0], model="m", shard="1/2", samples=2, seed=3, workers=8)
    settings(runs[1], **second)
    caplog.clear()
    result = merge_runs(tmp_path / "out", runs)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ([] if merged else ["the merged run cannot be resumed: the runs differ in model"])
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (facts.get("config"), result.resumable) == (merged, merged is not None)
    assert (facts["prompts"], facts["records"], facts["seconds"]) == (4, 2, 3.0)


async def test_warning_of_a_merge_comes_before_anything_is_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(tmp_path / "x", [await row(A)])
    out = tmp_path / "no" / "directory"
    out.parent.touch()  # nothing can be written below a file
    with pytest.raises(ExecError):
        merge_runs(out, [run])
    assert f"cannot be resumed: {run} has no settings" in caplog.text


async def test_mistakes_have_clear_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "x", [await row(A)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "none").mkdir()
    cases: Sequence[tuple[str, list[Path], str]] = [
        ("full", [run], "exists and is not an empty directory"),
        ("out", [run, tmp_path / "x"], "give each run once"),
        ("out", [], "give the directories of the runs"),
        ("out", [run, tmp_path / "none"], r"none has no trajectories\.jsonl"),
        ("out", [write_run(tmp_path / "empty", []), write_run(tmp_path / "half", [b"half\n"])], "empty, .* no record"),
    ]
    for out, runs, message in cases:
        with pytest.raises(ConfigError, match=message):
            merge_runs(tmp_path / out, runs)
    with Trajectories.reopen(run, lambda _: {}), pytest.raises(ConfigError, match="another process is writing"):
        merge_runs(tmp_path / "out", [run])
    assert not (tmp_path / "out").exists()


async def test_merge_from_the_command_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = CommandLine(capfd, monkeypatch)
    runs = [write_run(tmp_path / name, [await row(A)]) for name in "xy"]
    once = command("merge", tmp_path / "one", *runs)
    assert (once.code, "1 records, 1 doubles left out, 0 renumbered" in " ".join(once.err.split())) == (0, True)
    assert "cannot be resumed" in caplog.text
    both = command("merge", tmp_path / "two", *runs, "--as-samples", "--json")
    assert (both.code, json.loads(both.out)["renumbered"]) == (0, 1)
    wrong = command("merge", tmp_path / "two", *runs)
    assert (wrong.code, "not an empty directory" in " ".join(wrong.err.split())) == (2, True)
