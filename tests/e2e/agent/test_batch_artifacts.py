"""Files that a batch run collects from its slots."""

from __future__ import annotations

import json
import os
import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Artifacts, Rollout, ScriptedModel
from hermes_batch import BatchConfig, resume_batch, run_batch, run_rollouts
from hermes_batch.artifacts import artifact_directory
from hermes_batch.units import iterate_units
from hermes_exec import SandboxPool
from hermes_exec.errors import ConfigError
from tests.conftest import BackendCase
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_batch_run import config, lines
from tests.e2e.agent.test_commands import model, plan_endpoint, run

pytestmark = pytest.mark.anyio


def artifacts_of(out: Path) -> dict[str, bytes]:
    """The files below `artifacts/` with their contents."""
    files = [path for path in (out / "artifacts").rglob("*") if not path.is_dir()]
    assert all(stat.S_IMODE(path.lstat().st_mode) == 0o600 for path in files)
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def listed(record: dict[str, Any]) -> list[str]:
    paths: list[str] = json.loads(record["artifacts"])
    return paths


async def test_files_of_each_sample_are_collected(tmp_path: Path, backend: BackendCase) -> None:
    """Two prompts have the same id, and one has the same row twice: none of their files collide."""
    plans: dict[str, list[Step]] = {
        "p": [["mkdir out; echo p > out/a.txt; echo log > log; mkfifo out/fifo"], "done"],
        "q": [["mkdir out; echo q > out/a.txt"], "done"],
    }
    made = config(
        tmp_path,
        plans,
        {"prompt": "p", "id": "../same", "collect": ["log"], "check": "rm -r out log"},
        {"prompt": "q", "id": "../same"},
        {"prompt": "q", "id": "../same"},
        samples=2,
        collect=["out/*"],
        backend=backend.backend,
        image=backend.options.get("image"),
    )
    await run_batch(made)
    records = lines(tmp_path)
    assert len(records) == 6
    contents = artifacts_of(made.out)
    assert sorted(path for record in records for path in listed(record)) == sorted(contents)
    for record in records:
        names = {Path(path).name: contents[path] for path in listed(record)}
        errors = json.loads(record["errors"])
        if record["prompt_index"] == 0:
            assert names == {"a.txt": b"p\n", "log": b"log\n"}
            problem = "'out/fifo' is not a file but a fifo"
            assert errors == [{"turn": 2, "where": "collect", "kind": "left_out", "message": problem}]
        else:
            assert (names, errors) == ({"a.txt": b"q\n"}, [])
    directories = {artifact_directory(unit) for unit in iterate_units(made.read_tasks(), 2)}
    assert len(directories) == 6
    assert {path.rsplit("/", 2 if "/out/" in path else 1)[0] for path in contents} == directories
    assert sorted(os.listdir(tmp_path)) == ["out", "prompts.jsonl"]


async def test_secrets_are_masked_in_collected_texts(tmp_path: Path) -> None:
    steps: list[Step] = [["echo \"it is $TOKEN\" > text; printf 'hush-hush\\377' > data"], "done"]
    options = {"secrets": {"TOKEN": "hush-hush"}, "env": {"TOKEN": "hush-hush"}}
    made = config(tmp_path, {"p": steps}, {"prompt": "p"}, collect=["*"], backend_options=options)
    await run_batch(made)
    assert sorted(artifacts_of(made.out).values()) == [b"hush-hush\377", b"it is ***\n"]


async def test_overwritten_run_keeps_no_artifacts(tmp_path: Path) -> None:
    made = config(tmp_path, {"p": [["echo p > a"], "done"]}, {"prompt": "p"}, collect=["a"])
    await run_batch(made)
    assert len(artifacts_of(made.out)) == 1
    (made.out / "artifacts" / "mine").write_text("of the user")
    (made.out / "artifacts" / "mine").chmod(0o600)
    await run_batch(made.model_copy(update={"overwrite": True, "collect": ()}))
    assert artifacts_of(made.out) == {"artifacts/mine": b"of the user"}
    assert listed(lines(tmp_path)[0]) == []


async def test_resumed_run_collects_with_its_original_settings(tmp_path: Path) -> None:
    made = config(tmp_path, {"p": [["echo p > a"], "done"]}, {"prompt": "p"}, collect=["a"], collect_limit_mb=3)
    await run_batch(made)
    await resume_batch(made.out, model=made.model, samples=2)
    assert sorted(path for record in lines(tmp_path) for path in listed(record)) == sorted(artifacts_of(made.out))
    assert len(artifacts_of(made.out)) == 2


async def test_rollouts_of_the_caller_collect_into_the_run(tmp_path: Path) -> None:
    """Whatever directory their artifacts name."""
    collect = Artifacts(["a"], tmp_path / "elsewhere")
    rollouts = [(name, Rollout(messages="p", toolsets=["terminal"], collect=collect)) for name in ("x/y", "x_y")]
    model = PlanModel({"p": [["echo p > a"], "done"]})
    async with SandboxPool("local") as pool:
        await run_rollouts(rollouts, pool, model, tmp_path / "out")
    assert sorted(path for record in lines(tmp_path) for path in listed(record)) == sorted(
        artifacts_of(tmp_path / "out")
    )
    assert len(artifacts_of(tmp_path / "out")) == 2
    assert sorted(os.listdir(tmp_path)) == ["out"]


async def test_new_attempt_replaces_the_files_of_the_attempt_before(tmp_path: Path) -> None:
    row = {"prompt": "p", "check": "[ -e new ] || kill -9 $$", "score_in": "slot"}
    made = config(tmp_path, {"p": [["echo old > old"], "done"]}, row, collect=["*"])
    await run_batch(made)
    assert [record["solved"] for record in lines(tmp_path)] == ["unscored"]
    assert [Path(path).name for path in artifacts_of(made.out)] == ["old"]
    await resume_batch(made.out, model=PlanModel({"p": [["echo new > new"], "done"]}))
    assert [record["solved"] for record in lines(tmp_path)] == ["solved"]
    assert [*artifacts_of(made.out)] == listed(lines(tmp_path)[0])
    assert [Path(path).name for path in artifacts_of(made.out)] == ["new"]


def test_patterns_and_limit_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "p"}\n')
    plan: list[Step] = [["echo 1 > a.txt; mkdir d; echo 2 > d/b; head -c 2000000 /dev/zero > d/large"], "done"]
    with plan_endpoint({"p": plan}) as url:
        batch = ("batch", "run", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out"), *model(url))
        refused = run(*batch, "--collect", "../a")
        done = run(*batch, "--collect", "*.txt", "--collect", "d", "--collect-limit", "1")
    assert (refused.returncode, "'../a' is not a path inside the working directory" in refused.stderr) == (2, True)
    assert done.returncode == 0, done.stderr
    (record,) = lines(tmp_path)
    assert [Path(path).name for path in listed(record)] == ["a.txt", "b"]
    assert "'d/large' has 2000000 bytes" in record["errors"]


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../a", "a//b", ""])
def test_pattern_outside_the_workspace_is_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a path inside the working directory"):
        BatchConfig.of({"dataset": tmp_path, "out": tmp_path, "model": "m", "collect": (pattern,)})


async def test_images_of_samples_and_of_equal_prompts_do_not_collide(tmp_path: Path) -> None:
    def prompt(content: bytes) -> dict[str, Any]:
        url = f"data:image/png;base64,{b64encode(content).decode()}"
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}

    rows = [prompt(b"one"), prompt(b"two"), prompt(b"one")]
    made = config(tmp_path, {}, *rows, samples=12, model=ScriptedModel(["done"] * 36))
    await run_batch(made)
    paths = []
    for record in lines(tmp_path):
        (shot,) = json.loads(record["screenshots"])
        assert json.loads(record["messages"])[0]["content"][0]["image_url"]["url"] == shot["path"]
        assert (made.out / shot["path"]).read_bytes() == (b"two" if record["prompt_index"] == 1 else b"one")
        paths.append(shot["path"])
    assert len(set(paths)) == len(os.listdir(made.out / "screenshots")) == 36
    await run_batch(made.model_copy(update={"overwrite": True, "samples": 1, "model": ScriptedModel(["done"] * 3)}))
    assert len(os.listdir(made.out / "screenshots")) == 3
