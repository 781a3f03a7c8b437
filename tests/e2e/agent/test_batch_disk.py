"""A batch run whose results no longer fit on the disk."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from hermes_batch import read_records
from tests.e2e.agent.plans import Step
from tests.e2e.agent.test_commands import ROOT, command, model, plan_endpoint, prompts, run
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
