"""The calls of one turn run in order: none sees what a later one does, and each sees what the earlier ones did."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hermes_agent.messages import assistant_message
from hermes_batch import BatchConfig, run_batch
from hermes_exec import SandboxPool
from tests.conftest import ROOT, require_engine
from tests.e2e.agent.ordered_pairs import SAMPLE, TURNS, TurnModel, wrong_turns
from tests.unit.agent.endpoint import ok
from tests.unit.agent.tokens.server import Answer, serving

pytestmark = [pytest.mark.anyio]
SLOTS = 8


@pytest.fixture(scope="module", params=["local", pytest.param("docker-debian", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    engine, _, image = str(request.param).partition("-")
    require_engine(engine)
    options: dict[str, Any] = {"image": docker_image(image)} if image else {}
    async with SandboxPool(engine, slots_per_sandbox=SLOTS, max_sandboxes=1, **options) as made:
        yield made


@pytest.mark.parametrize("name", SAMPLE)
async def test_calls_of_a_turn_run_in_order(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 16, SLOTS) == []


@pytest.mark.whole
@pytest.mark.parametrize("name", TURNS)
async def test_calls_of_every_turn_run_in_order(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 64, SLOTS) == []


@pytest.mark.parametrize("name", ["six appends cat", "cd terminal", "cd background", "export terminal"])
async def test_commands_of_one_shell_keep_their_order_all_at_once(name: str, pool: SandboxPool) -> None:
    assert await wrong_turns(pool, TURNS[name], 16, SLOTS, parallel_calls="all") == []


@pytest.mark.parametrize("image", [None, pytest.param("debian", marks=pytest.mark.docker)])
@pytest.mark.parametrize("name", ["write_file read_file", "cd read_file"])
async def test_calls_of_a_batch_run_in_order(
    name: str, image: str | None, tmp_path: Path, docker_image: Callable[[str], str]
) -> None:
    require_engine("local" if image is None else "docker")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n}", "files": {"f": "old\n"}}) + "\n" for n in range(32)))
    model = TurnModel(TURNS[name])
    where = {"backend": "local"} if image is None else {"backend": "docker", "image": docker_image(image)}
    config = BatchConfig(
        dataset=prompts, out=tmp_path / "out", model=model, workers=SLOTS, slots_per_sandbox=SLOTS, **where
    )
    result = await run_batch(config)
    assert (result.unscored, model.asked, model.wrong) == (0, 32, [])


@pytest.mark.parametrize("name", ["terminal read_file", "write_file run"])
def test_calls_of_the_command_line_run_in_order(name: str, tmp_path: Path) -> None:
    model = TurnModel(TURNS[name])
    (tmp_path / "f").write_text("old\n")

    def answer(_: str, body: dict[str, Any]) -> Answer:
        said = ok(assistant_message(model.answer(body["messages"])))
        return Answer(said.status, said.body)

    with serving(answer) as url, ThreadPoolExecutor(4) as at_once:
        command = (sys.executable, "-m", "hermes_exec.cli.main", "agent", "go", "--put", str(tmp_path / "f"))
        endpoint = ("--model", "m", "--base-url", f"{url}/v1", "--api-key", "x")
        runs = [at_once.submit(subprocess.run, [*command, *endpoint], cwd=ROOT, timeout=120) for _ in range(4)]
        assert [run.result().returncode for run in runs] == [0] * 4
    assert (model.asked, model.wrong) == (4, [])
