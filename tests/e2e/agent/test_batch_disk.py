"""A batch run whose results no longer fit on the disk."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hermes_batch import read_records
from tests.e2e.agent.plans import Step
from tests.e2e.agent.test_commands import ROOT, command, model, plan_endpoint, prompts, run
from tests.support.directories import let_others_pass
from tests.support.disks import empty, fill, small_disk


def test_full_output_ends_the_run_and_is_named(tmp_path: Path) -> None:
    arguments = ("batch", "run", str(prompts(tmp_path, "p")), "--out", str(tmp_path / "out"))
    with plan_endpoint({"p": [["touch made"], "done"]}) as url, open("/dev/full", "wb") as full:
        to_full = partial(subprocess.run, cwd=ROOT, text=True, timeout=120, check=False)
        ended = to_full(command(*arguments, *model(url)), stdout=full, stderr=subprocess.PIPE)
        unseen = to_full(command(*arguments, *model(url), "--overwrite"), stderr=full, stdout=subprocess.PIPE)
    assert ended.returncode == 3
    assert ended.stderr.endswith("\nOSError: [Errno 28] No space left on device: '<stdout>'\n")
    assert unseen.returncode == 3
    assert len(list(read_records(tmp_path / "out"))) == 1


def test_full_disk_ends_the_run_and_resume_goes_on(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a mount takes root")
    names = [f"p{n}" for n in range(8)]
    plans: dict[str, list[Step]] = {name: [["touch made"], "done"] for name in names}
    with small_disk(tmp_path / "disk") as disk:
        out = disk / "out"

        def fill_disk(prompt: str, turn: int) -> None:
            if (prompt, turn) == ("p3", 0) and not (disk / "others").exists():
                fill(disk)

        arguments = ("batch", "run", str(prompts(tmp_path, *names)), "--out", str(out), "--workers", "1")
        with plan_endpoint(plans, fill_disk) as url:
            ended = run(*arguments, *model(url))
        empty(disk)
        assert ended.returncode == 3, ended.stderr
        assert f"cannot write to {out}: No space left on device" in " ".join(ended.stderr.split())
        assert f"hermes-exec batch resume {out}" in " ".join(ended.stderr.split())
        assert "Traceback" not in ended.stderr
        with plan_endpoint(plans) as url:
            resumed = run("batch", "resume", str(out), "--base-url", url)
        assert resumed.returncode == 0, resumed.stderr
        assert sorted(str(record["id"]) for record in read_records(out)) == [f"task-{n}" for n in range(8)]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a mount takes root")
    let_others_pass(tmp_path)
    with small_disk(tmp_path / "temporary") as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        yield disk


def filler(disk: Path, at: tuple[str, int]) -> Callable[[str, int], None]:
    """Fill the disk before a turn of a prompt is answered, once."""

    def fill_disk(prompt: str, turn: int) -> None:
        if (prompt, turn) == at and not (disk / "others").exists():
            fill(disk)

    return fill_disk


NAMES = [f"p{n}" for n in range(6)]
PLANS: dict[str, list[Step]] = {name: [["head -c 3000000 /dev/zero > made"], "done"] for name in NAMES}


@pytest.mark.parametrize("workers", ["1", "4"])
def test_full_temporary_directory_ends_the_run_and_is_named(tmp_path: Path, temporary: Path, workers: str) -> None:
    out = tmp_path / "out"
    arguments = ("batch", "run", str(prompts(tmp_path, *NAMES)), "--out", str(out), "--workers", workers)
    with plan_endpoint(PLANS, filler(temporary, ("p3", 0))) as url:
        ended = run(*arguments, *model(url))
    assert ended.returncode == 3, ended.stderr
    error = " ".join(ended.stderr.split())
    no_slot = rf"HostDiskFull: no slot, because the disk of \S+ \({temporary}\) is nearly full"
    no_archive = f"HostDiskFull: no room for the work of a slot in {temporary} on this host"
    assert re.search(no_slot if workers == "1" else f"{no_slot}|{no_archive}", error)
    assert f"hermes-exec batch resume {out}" in error
    kept = {str(record["id"]) for record in read_records(out)}
    assert kept <= {"task-0", "task-1", "task-2"}
    assert len(kept) == 3 or workers != "1"
    empty(temporary)
    with plan_endpoint(PLANS) as url:
        resumed = run("batch", "resume", str(out), "--base-url", url)
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(str(record["id"]) for record in read_records(out)) == [f"task-{n}" for n in range(6)]


def test_temporary_directory_without_room_for_sealed_work_ends_the_run(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "sandboxes").mkdir()
    out, base = tmp_path / "out", f"base_dir={tmp_path / 'sandboxes'}"
    arguments = ("batch", "run", str(prompts(tmp_path, *NAMES)), "--out", str(out), "--workers", "1", "-o", base)
    with plan_endpoint(PLANS, filler(temporary, ("p2", 1))) as url:
        ended = run(*arguments, *model(url))
    assert ended.returncode == 3, ended.stderr
    assert f"no room for the work of a slot in {temporary} on this host" in " ".join(ended.stderr.split())
    assert [str(record["id"]) for record in read_records(out)] == ["task-0", "task-1"]


def test_work_that_is_too_large_for_the_temporary_directory_ends_one_prompt(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "sandboxes").mkdir()
    out, base = tmp_path / "out", f"base_dir={tmp_path / 'sandboxes'}"
    plans: dict[str, list[Step]] = {**PLANS, "p1": [["head -c 80000000 /dev/zero > made"], "done"]}
    arguments = ("batch", "run", str(prompts(tmp_path, *NAMES[:3])), "--out", str(out), "--workers", "1", "-o", base)
    with plan_endpoint(plans) as url:
        ended = run(*arguments, *model(url))
    assert ended.returncode == 3, ended.stderr
    records = {str(record["id"]): record for record in read_records(out)}
    assert [records[f"task-{n}"]["solved"] for n in range(3)] == ["solved", "unscored", "solved"]
    assert f"no room for the work of a slot in {temporary}" in str(records["task-1"]["errors"])
