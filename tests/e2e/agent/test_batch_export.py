"""The way of docs/data-sets.md: from prompts to a data set of solved samples that `datasets` loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import datasets  # type: ignore[import-untyped]
import pytest

from tests.e2e.agent.plans import Step
from tests.e2e.agent.test_commands import ROOT, model, plan_endpoint, run
from tests.support.disks import empty, fill, small_disk
from tests.unit.batch.exporting import make_row, write_run

TASKS = ROOT / "examples" / "tasks.jsonl"


def test_prompts_become_a_data_set_of_solved_samples(tmp_path: Path) -> None:
    tasks = [json.loads(line) for line in TASKS.read_text("utf-8").splitlines()]
    plans: dict[str, list[Step]] = {task["prompt"]: [[task["solution"]], "Done."] for task in tasks}
    plans[tasks[0]["prompt"]] = ["I will not."]
    out, data = tmp_path / "run", tmp_path / "data"
    with plan_endpoint(plans) as url:
        samples = ("--samples", "4", "--until-solved", "3", "--workers", "8", "-b", "local")
        ran = run("batch", "run", str(TASKS), "--out", str(out), *samples, *model(url))
    assert ran.returncode == 0, ran.stderr
    wishes = ("--only", "solved", "--per-prompt", "3", "--split", "train=0.9")
    exported = run("batch", "export", str(out), "--to", "openai", *wishes, "-o", str(data), "--json")
    assert exported.returncode == 0, exported.stderr
    result = json.loads(exported.stdout)
    # Samples under way when a prompt has its three are kept, so that some prompts may have four.
    assert (result["written"], result["prompts"], result["left_out"]["outcome"]) == (69, 23, 4)
    loaded = datasets.load_dataset(str(data), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in loaded.items()} == result["splits"]
    assert result["splits"].keys() == {"train", "test"}
    row = loaded["train"][0]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert "terminal" in [tool["function"]["name"] for tool in row["tools"]]


@pytest.mark.anyio
async def test_full_disk_leaves_the_earlier_export(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a mount takes root")
    row, _ = await make_row("short")
    source = write_run(tmp_path / "run", ({**row, "group": f"{at:032x}"} for at in range(500)))
    with small_disk(tmp_path / "disk") as disk:
        data = disk / "data"
        arguments = ("batch", "export", str(source), "--to", "sharegpt", "-o", str(data))
        assert run(*arguments, "--max-tokens", "1000").returncode == 0
        before = sorted(disk.rglob("*"))
        fill(disk)
        ended = run(*arguments, "--overwrite")
        assert (ended.returncode, ended.stdout) == (3, "")
        assert f"cannot write to {data}: No space left on device" in " ".join(ended.stderr.split())
        empty(disk)
        assert sorted(disk.rglob("*")) == before
        assert run(*arguments, "--overwrite").returncode == 0
