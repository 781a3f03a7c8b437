"""`batch export` from the command line: which records it writes, where, and why it leaves out the others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_batch import export_records
from hermes_exec.errors import ConfigError
from tests.unit.batch.exporting import CommandLine, Row, make_row, read_lines, write_run

pytestmark = pytest.mark.anyio
A, B, C = "a" * 32, "b" * 32, "c" * 32


def usage(prompt: int, completion: int) -> str:
    return json.dumps(
        [{"prompt_tokens": 10, "completion_tokens": 1}, {"prompt_tokens": prompt, "completion_tokens": completion}]
    )


async def make_samples() -> list[Row]:
    """Return four samples of one prompt, two of another, and one that may not be scored."""
    plain, _ = await make_row("plain", id="a", group=A)
    short, _ = await make_row("short", id="a", group=A)
    failed, _ = await make_row("failed", id="b", group=B, prompt="other", solved="unsolved")
    dead = {
        **plain,
        "id": "c",
        "group": C,
        "trainable": False,
        "solved": "unscored",
        "cause": "infra",
        "reward": "null",
    }
    return [
        {**plain, "sample": 1, "usage": usage(500, 50), "reward": "0.9"},
        {**plain, "sample": 0, "usage": usage(300, 50), "reward": "0.5"},
        {**short, "sample": 3, "usage": usage(100, 50), "reward": "0.9"},
        {**failed, "sample": 0, "usage": usage(200, 50), "reward": "0.0"},
        {**plain, "sample": 2, "usage": usage(400, 50), "solved": "unsolved", "reward": "0.1"},
        {**plain, "id": "b", "group": B, "sample": 1, "usage": usage(260, 50), "solved": "unchecked", "reward": "null"},
        dead,
    ]


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", await make_samples())


def left_out(out: Path, *reasons: str) -> list[str]:
    """Return the records that were left out for these reasons (none: for any), such as `a/0`."""
    lines = read_lines(out / "left_out.jsonl")
    return sorted(f"{line['id']}/{line['sample']}" for line in lines if not reasons or line["reason"] in reasons)


@pytest.mark.parametrize(
    ("arguments", "reason", "names"),
    [
        ((), "untrainable", ["c/0"]),
        (("--only", "solved"), "outcome", ["a/2", "b/0", "b/1"]),
        (("--only", "solved", "--only", "unchecked"), "outcome", ["a/2", "b/0"]),
        (("--min-reward", "0.5"), "reward", ["a/2", "b/0", "b/1"]),
        (("--per-prompt", "2"), "per_prompt", ["a/2", "a/3"]),
        (("--per-prompt", "1"), "per_prompt", ["a/1", "a/2", "a/3", "b/1"]),
        (("--per-prompt", "shortest"), "per_prompt", ["a/0", "a/1", "a/2", "b/1"]),
        (("--per-prompt", "best"), "per_prompt", ["a/0", "a/1", "a/2", "b/1"]),
        (("--max-tokens", "350"), "tokens", ["a/1", "a/2"]),
        (("--dedupe", "prompt"), "duplicate", ["a/1", "a/2", "a/3", "b/1"]),
        (("--dedupe", "first-call"), "duplicate", ["a/1", "a/2"]),
        (("--dedupe", "first-call", "--per-prompt", "1"), "duplicate", ["a/1", "a/2"]),
        (("--no-failed-calls",), "failed_call", ["b/0"]),
        (("--include-untrainable",), "untrainable", []),
        (("--include-untrainable", "--only", "unscored"), "outcome", ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1"]),
    ],
    ids=lambda value: "_".join(value).replace("--", "") if isinstance(value, tuple) else "",
)
async def test_flag_leaves_out_records(
    arguments: tuple[str, ...], reason: str, names: list[str], run: Path, tmp_path: Path, batch: CommandLine
) -> None:
    out = tmp_path / "out"
    ended = batch("export", run, "--to", "openai", "-o", out, *arguments, "--json")
    assert ended.code == 0, ended.err
    assert left_out(out, reason) == names
    result = json.loads(ended.out)
    assert result["left_out"].get(reason, 0) == len(names)
    assert result["read"] == result["written"] + sum(result["left_out"].values()) == 7
    assert len(read_lines(out / "train.jsonl")) == result["written"] == sum(result["splits"].values())


async def test_prompt_is_the_same_in_several_groups(tmp_path: Path, batch: CommandLine) -> None:
    rows = [
        (await make_row("short", group=group, id=group[0], prompt=prompt))[0]
        for group, prompt in ((A, "x"), (B, "x"), (C, "y"))
    ]
    out = tmp_path / "out"
    assert (
        batch("export", write_run(tmp_path / "run", rows), "--to", "openai", "-o", out, "--dedupe", "prompt").code == 0
    )
    assert left_out(out) == ["b/0"]


async def test_table_has_the_sums(run: Path, tmp_path: Path, batch: CommandLine) -> None:
    ended = batch("export", run, "--to", "openai", "--out", tmp_path / "out", "--only", "solved")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines[:3] == ["records count first reason", "written: train 3", "left out: outcome 3 it is unsolved"]
    assert lines[3].startswith("left out: untrainable 1 its result does not measure the model")
    assert "3 of 7 records of 1 prompts, 1050 tokens" in ended.err
    summary = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (summary["written"], summary["tokens"], summary["options"]["only"]) == (3, 1050, ["solved"])


async def test_broken_line_is_left_out(tmp_path: Path, batch: CommandLine) -> None:
    row, _ = await make_row("short")
    run = write_run(tmp_path / "run", [row, b'{"id": "cut'])
    assert batch("export", run, "--to", "openai", "-o", tmp_path / "out").code == 0
    (line,) = read_lines(tmp_path / "out" / "left_out.jsonl")
    assert (line["reason"], line["sample"], line["run"]) == ("unreadable", -1, str(run))


async def test_records_of_earlier_versions_are_read(tmp_path: Path, batch: CommandLine) -> None:
    row, _ = await make_row("short", task_digest="d" * 64)
    for name in ("group", "sample", "reward", "usage"):
        row.pop(name)
    older = {**row, "id": "older", "prompt_index": 1}
    for name in ("messages", "exportable", "export_problem"):
        older.pop(name)
    run = write_run(tmp_path / "run", [row, older])
    ended = batch(
        "export", run, "--to", "openai", "-o", tmp_path / "out", "--min-reward", "1", "--per-prompt", "best", "--json"
    )
    assert json.loads(ended.out)["written"] == 1
    assert json.loads(ended.out)["estimated"] == 1
    (line,) = read_lines(tmp_path / "out" / "left_out.jsonl")
    assert (line["id"], line["reason"], line["detail"]) == ("older", "format", "written without its messages")


async def test_splits_keep_the_samples_of_a_prompt_together(tmp_path: Path, batch: CommandLine) -> None:
    row, _ = await make_row("short")
    groups = [f"{at * 7919:032x}" for at in range(400)]
    rows = [{**row, "group": group, "sample": sample, "id": group} for sample in range(2) for group in groups]
    rows += [{**row, "group": f"{groups[0]}-1", "id": groups[0]}]
    run = write_run(tmp_path / "run", rows)
    sides = []
    for name, order in (("one", rows), ("two", rows[::-1])):
        out = tmp_path / name
        source = run if name == "one" else write_run(tmp_path / "reversed", order)
        arguments = ("--split", "train=0.8", "--split", "validation=0.1")
        assert batch("export", source, "--to", "sharegpt", "-o", out, *arguments).code == 0
        sides.append(
            {
                split: {line["id"].split("/")[0] for line in read_lines(out / f"{split}.jsonl")}
                for split in ("train", "validation", "test")
            }
        )
    assert sides[0] == sides[1]
    parts = list(sides[0].values())
    assert [len(part) for part in parts] == [
        pytest.approx(320, abs=30),
        pytest.approx(40, abs=20),
        pytest.approx(40, abs=20),
    ]
    assert set.union(*parts) == set(groups)
    assert sum(map(len, parts)) == len(groups)
    assert "path: validation.jsonl" in (tmp_path / "one" / "README.md").read_text()


async def test_runs_are_joined(tmp_path: Path, batch: CommandLine) -> None:
    rows = await make_samples()
    runs = [write_run(tmp_path / name, [row]) for name, row in (("x", rows[0]), ("y", {**rows[2], "sample": 1}))]
    out = tmp_path / "out"
    assert batch("export", *runs, "--to", "openai", "-o", out, "--per-prompt", "best").code == 0
    (line,) = read_lines(out / "left_out.jsonl")
    assert (line["run"], line["reason"]) == (str(runs[0]), "per_prompt")
    assert len(read_lines(out / "train.jsonl")) == 1


async def test_unwritable_record_does_not_stand_for_its_prompt(tmp_path: Path, batch: CommandLine) -> None:
    rows = [(await make_row(kind, sample=at))[0] for at, kind in enumerate(("broken", "plain"))]
    out = tmp_path / "out"
    assert (
        batch("export", write_run(tmp_path / "run", rows), "--to", "openai", "-o", out, "--per-prompt", "1").code == 0
    )
    assert left_out(out, "format") == ["task/0"]
    assert len(read_lines(out / "train.jsonl")) == 1


@pytest.mark.parametrize("to", ["openai", "hf-trace", "parquet"])
async def test_export_without_a_record_fails_and_leaves_no_directory(
    to: str, run: Path, tmp_path: Path, batch: CommandLine
) -> None:
    arguments = ("export", run, "--to", to, "-o", tmp_path / "out")
    ended = batch(*arguments, "--min-reward", "2")
    assert ended.code == 1
    assert re.search(r"left out: reward +6", ended.out)
    assert "no record is left" in ended.err
    assert os.listdir(tmp_path) == ["run"]
    assert batch(*arguments).code == 0
    earlier = (tmp_path / "out" / "export.json").read_bytes()
    ended = batch(*arguments, "--min-reward", "2", "--overwrite", "--json")
    assert (ended.code, json.loads(ended.out)["left_out"]) == (1, {"reward": 6, "untrainable": 1})
    assert (tmp_path / "out" / "export.json").read_bytes() == earlier
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "openia"), "to: 'openia' is unknown; did you mean 'openai'?"),
        (("--to", "openai", "--only", "good"), "only: 'good' is unknown"),
        (("--to", "openai", "--only", "unscored"), "add include_untrainable"),
        (("--to", "openai", "--per-prompt", "0"), "per_prompt must be a number from 1, shortest or best, not '0'"),
        (("--to", "openai", "--per-prompt", "longest"), "per_prompt must be"),
        (("--to", "openai", "--max-tokens", "0"), "max_tokens must be at least 1"),
        (("--to", "openai", "--min-reward", "nan"), "min_reward must be a number"),
        (("--to", "openai", "--dedupe", "id"), "dedupe: 'id' is unknown"),
        (("--to", "openai", "--split", "train"), "split must be NAME=SHARE"),
        (("--to", "openai", "--split", "train=0"), "the share of train must be above 0"),
        (("--to", "openai", "--split", "../x=0.5"), "'../x' is no name"),
        (("--to", "openai", "--split", "train=0.9", "--split", "test=0.2"), "more than 1"),
        (("--to", "openai", "--split", "train=0.9", "--split", "train=0.1"), "train is given twice"),
        (("--to", "openai", "--split", "train=0.8", "--split", "test=0.1"), "give them all"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
async def test_wrong_argument_is_explained(
    arguments: tuple[str, ...], message: str, run: Path, tmp_path: Path, batch: CommandLine
) -> None:
    ended = batch("export", run, *arguments, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not (tmp_path / "out").exists()


async def test_directory_without_a_run_is_explained(run: Path, tmp_path: Path, batch: CommandLine) -> None:
    for runs, message in (((tmp_path,), "has no trajectories.jsonl"), ((run, run / ".." / "run"), "is given twice")):
        ended = batch("export", *runs, "--to", "openai", "-o", tmp_path / "out")
        assert ended.code == 2
        assert message in ended.err


async def test_existing_directory_is_not_replaced_by_accident(run: Path, tmp_path: Path, batch: CommandLine) -> None:
    out = tmp_path / "out"
    export: Callable[..., int] = lambda *more: batch("export", run, "--to", "sharegpt", "-o", out, *more).code  # noqa: E731
    out.mkdir()
    assert export() == 0
    assert "has an export; give another directory" in batch("export", run, "--to", "sharegpt", "-o", out).err
    assert export() == 2
    (out / "train.jsonl").write_text("")
    assert export("--overwrite", "--only", "solved") == 0
    assert len(read_lines(out / "train.jsonl")) == 3
    assert batch("export", run, "--to", "sharegpt", "-o", run, "--overwrite").code == 2
    assert (run / "trajectories.jsonl").exists()
    (tmp_path / "file").write_text("x")
    assert batch("export", run, "--to", "sharegpt", "-o", tmp_path / "file", "--overwrite").code == 2
    assert sorted(os.listdir(tmp_path)) == ["file", "out", "run"]


async def test_directory_of_the_export_is_private(run: Path, tmp_path: Path) -> None:
    result = export_records(run, to="openai", out=tmp_path / "new" / "out", split={"train": 0.5})
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*")}
    assert modes.pop("out") == 0o700
    assert set(modes.values()) == {0o600}
    assert result.written == 6


async def test_image_outside_of_the_run_is_never_read(tmp_path: Path, batch: CommandLine) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    rows = []
    for at, url in enumerate(
        (
            "../secret.png",
            str(tmp_path / "secret.png"),
            "screenshots/../../secret.png",
            "screenshots/link.png",
            "screenshots/none.png",
        )
    ):
        content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "ok"}]
        rows.append((await make_row("short", id=str(at), group=f"{at:032}", messages=json.dumps(messages)))[0])
    rows.append((await make_row("short", id="good"))[0])
    run = write_run(tmp_path / "run", rows)
    (run / "screenshots").mkdir()
    (run / "screenshots" / "link.png").symlink_to(tmp_path / "secret.png")
    for to in ("openai", "atif", "hf-trace"):
        assert batch("export", run, "--to", to, "-o", tmp_path / to).code == 0
        assert left_out(tmp_path / to, "format") == [f"{at}/0" for at in range(5)]


def test_runs_are_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        export_records([], to="openai", out=tmp_path / "out")
