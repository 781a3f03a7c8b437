"""The shipped browser tasks, each solved by the scripted agent in a slot of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo.solutions_model import SolutionsModel
from hermes_batch import BatchConfig, read_records, run_batch
from tests.conftest import require_engine

DIRECTORY = Path(__file__).parents[4] / "examples" / "browser"
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("begin", range(0, 30, 5))
@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
async def test_they_are_solved(tmp_path: Path, backend: str, begin: int, docker_image: Callable[[str], str]) -> None:
    require_engine("chromium" if backend == "local" else backend)
    tasks = tmp_path / "tasks.jsonl"
    lines = (DIRECTORY / "tasks.jsonl").read_text("utf-8").splitlines(keepends=True)
    tasks.write_text("".join(lines[begin : begin + 5]), "utf-8")
    shutil.copytree(DIRECTORY / "shop", tmp_path / "shop")
    config = BatchConfig(
        dataset=tasks,
        out=tmp_path / "out",
        model=SolutionsModel.of(tasks, DIRECTORY / "solutions.json"),
        backend=backend,
        image=docker_image("browser") if backend == "docker" else None,
        backend_options={"network": False},
        slots_per_sandbox=3,
        max_sandboxes=1,
        workers=3,
        toolsets=("terminal", "file", "browser", "code_execution"),
    )
    result = await run_batch(config)
    records = list(read_records(config.out))
    assert [(record["id"], record["conversations"][-3:]) for record in records if record["solved"] != "solved"] == []
    assert (result.complete, len(records)) == (True, 5)
