"""What a run writes is its owner's alone, whatever the umask is and whatever was there before."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_batch import resume_batch, run_batch
from hermes_batch.report.report import write_report
from hermes_exec import SandboxPool
from tests.e2e.agent.plans import Step
from tests.e2e.agent.test_batch_run import config

pytestmark = pytest.mark.anyio
PLANS: dict[str, list[Step]] = {"p": ["done"], "q": ["done"]}
FILES = ("trajectories.jsonl", "index.jsonl", "trajectories.parquet", "run.json", "status.json", "report.html")
PIXEL = b64encode(b"not looked at").decode()


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): path.stat().st_mode & 0o7777 for path in [top, *top.rglob("*")]}


async def test_files_of_a_batch_run_are_their_owners_alone(tmp_path: Path) -> None:
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "p"}, shown]}]
    plans = PLANS | {str(messages[0]["content"]): PLANS["p"]}
    run = config(tmp_path, plans, {"messages": messages}, {"prompt": "q"}, out=tmp_path / "runs" / "a" / "out")
    await run_batch(run)
    image = f"screenshots/{run.read_tasks()[0].group}-0-1.png"
    expected = {".": 0o700, "out": 0o700, "out/screenshots": 0o700} | {f"out/{name}": 0o600 for name in (*FILES, image)}
    assert modes(tmp_path / "runs" / "a") == expected
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    for path in {*run.out.rglob("*")} - {run.out / "run.json"}:
        path.chmod(0o755 if path.is_dir() else 0o664)  # as versions before wrote them
    await resume_batch(run.out, model=run.model)
    write_report(run.out)
    assert modes(tmp_path / "runs" / "a") == expected | {"out/screenshots": 0o755, f"out/{image}": 0o664}


async def test_directory_of_a_batch_run_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(0o755)
    await run_batch(config(tmp_path, PLANS, {"prompt": "q"}))
    assert modes(tmp_path / "out") == {".": 0o755} | dict.fromkeys(FILES, 0o600)


async def test_trace_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.touch(0o666)
    async with SandboxPool("local", slots_per_sandbox=1, trace=path) as pool, pool.slot() as slot:
        await slot.run("true")
    assert path.stat().st_mode & 0o777 == 0o600
    async with SandboxPool("local", slots_per_sandbox=1, trace="/dev/null"):
        pass
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666
