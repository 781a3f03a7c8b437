"""Pools beside each other: several backends in one process, one backend in several processes, and the commands that
look for sandboxes beside a pool that lives.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from hermes_exec import ExecError, SandboxDied, SandboxPool
from hermes_exec.backends.registry import backend_names
from tests.conftest import missing, require_engine
from tests.e2e.cli.conftest import PROGRAM, environment
from tests.support.directories import let_others_pass
from tests.support.nomad_agent import Agent
from tests.support.outside import runner_pid
from tests.support.sshd import server
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[3]
CALLS = 40
Image = Callable[[str], str]
ENGINES = ("docker", "ssh", "singularity", "nomad", "modal")
NAMES = ["local", *(pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES)]


@pytest.fixture
def config(
    tmp_path: Path, docker_image: Image, singularity_image: Image, request: pytest.FixtureRequest
) -> Iterator[dict[str, Any]]:
    """A configuration with the backends that are here, each with directories of its own."""
    let_others_pass(tmp_path)
    for name in ("local", "ssh", "singularity"):
        (tmp_path / name).mkdir(mode=0o711)
    backends: dict[str, Any] = {"local": {"type": "local", "base_dir": str(tmp_path / "local")}}
    with ExitStack() as held:
        if not missing("docker"):
            backends["docker"] = {"type": "docker", "image": docker_image("busybox"), "pull_policy": "never"}
        if not missing("ssh"):
            options = held.enter_context(server()).options(base_dir=str(tmp_path / "ssh"), connect_timeout_s=30)
            backends["ssh"] = {"type": "ssh", **options}
        if not missing("singularity"):
            directories = {"base_dir": str(tmp_path / "singularity"), "cache_dir": str(tmp_path / "cache")}
            backends["singularity"] = {"type": "singularity", "image": singularity_image("busybox"), **directories}
        if not missing("nomad"):
            agent: Agent = request.getfixturevalue("nomad_agent")
            backends["nomad"] = {"type": "nomad", **agent.options(image=docker_image("busybox"))}
        if not missing("modal"):
            request.getfixturevalue("modal_server")
            backends["modal"] = {"type": "modal", "image": docker_image("busybox")}
        pool = {"max_sandboxes": 2, "slots_per_sandbox": 4, "slot_root": "shared", "lease_s": 30}
        yield {**pool, "backends": backends}


def cli(*arguments: str) -> list[dict[str, Any]]:
    """What a command of the program says, as JSON."""
    command = [*PROGRAM, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def written(directory: Path, config: dict[str, Any]) -> str:
    path = directory / "several.json"
    path.write_text(json.dumps(config))
    return str(path)


async def use(pool: SandboxPool, name: str, counted: dict[str, int]) -> None:
    """Calls in slots that come and go; what one wrote is never there for the next."""
    for number in range(CALLS // 4):
        async with pool.slot() as slot:
            assert not await slot.files.exists("mark")
            await slot.files.write_text("mark", name)
            for _ in range(4):
                done = await slot.run(f"cat mark; echo -{number}")
                assert done.stdout == f"{name}-{number}\n"
                counted[name] += 1


@pytest.mark.whole
async def test_pools_of_several_backends_in_one_process(config: dict[str, Any]) -> None:
    """One loses its sandbox while it works, and ends before the others: they notice nothing."""
    counted = dict.fromkeys(config["backends"], 0)
    async with AsyncExitStack() as held:
        pools = {name: SandboxPool.from_config(config, backend=name) for name in counted}
        first = SandboxPool.from_config(config, backend="local")
        async with first, first.slot() as doomed:
            for pool in pools.values():
                await held.enter_async_context(pool)
            async with anyio.create_task_group() as tasks:
                for name, pool in pools.items():
                    for _ in range(3):
                        tasks.start_soon(use, pool, name, counted)
                await until(lambda: min(counted.values()) > 0)
                assert doomed.sandbox is not None
                os.kill(runner_pid(doomed.sandbox), signal.SIGKILL)
                with pytest.raises(ExecError):
                    await doomed.run("sleep 60")
        assert counted == dict.fromkeys(counted, 3 * CALLS)
        for name, pool in pools.items():
            async with pool.slot() as slot:
                assert (slot.backend, (await slot.run("echo on")).stdout) == (config["backends"][name]["type"], "on\n")
            assert pool.stats().failures == 0


@pytest.fixture
def driver(tmp_path: Path, config: dict[str, Any]) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """A function that starts another driver. The driver acquires a slot, prints its sandbox, and works until killed."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, run_id: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.e2e.pool.beside", written(tmp_path, config), name, run_id]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await to_thread.run_sync(process.stdout.readline)).strip()


@pytest.mark.parametrize("name", NAMES)
async def test_pools_of_one_backend_in_two_processes_and_commands_beside_them(
    name: str, config: dict[str, Any], driver: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """What a killed process leaves is found and ended; what lives is listed, and touched only when it is meant."""
    require_engine(name)
    runs = {role: f"{role}-{uuid.uuid4().hex[:8]}" for role in ("mine", "killed", "other")}
    file = ("--config", written(tmp_path, config))
    pool = SandboxPool.from_config(config, backend=name, run_id=runs["mine"])
    async with pool, pool.slot() as slot:
        killed, other = driver(name, runs["killed"]), driver(name, runs["other"])
        sandboxes = {"killed": await said(killed), "other": await said(other), "mine": str(slot.sandbox)}
        assert len(set(sandboxes.values())) == 3
        work = await slot.spawn("n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done")
        await work.stdout.receive()

        def listed() -> dict[str, dict[str, Any]]:
            return {row["sandbox"]: row for row in cli("ps", *file) if row["backend"] == name}

        rows = await to_thread.run_sync(listed)
        assert {rows[sandbox]["owner"] for sandbox in sandboxes.values()} == {"alive"}
        assert [rows[sandboxes[role]]["labels"]["run_id"] for role in runs] == list(runs.values())
        assert rows[sandboxes["mine"]]["slots"] == [slot.id]

        reaped = await to_thread.run_sync(lambda: cli("reap", *file, "--orphans"))
        assert not {row["sandbox"] for row in reaped} & set(sandboxes.values()), "their owners live"
        killed.kill()
        killed.wait()
        found: set[str] = {row["sandbox"] for row in await to_thread.run_sync(lambda: cli("reap", *file, "--orphans"))}
        assert not found & {sandboxes["mine"], sandboxes["other"]}
        assert sandboxes["killed"] not in await to_thread.run_sync(listed)

        rows_of_run = await to_thread.run_sync(lambda: cli("reap", *file, "--run-id", runs["other"]))
        assert [row["sandbox"] for row in rows_of_run] == [sandboxes["other"]]
        assert await said(other) == "SandboxDied"

        await work.stdout.receive()
        assert (await slot.run("echo here")).stdout == "here\n"
        assert pool.stats().failures == 0
        assert set(await to_thread.run_sync(listed)) >= {sandboxes["mine"]}


@pytest.mark.whole
async def test_all_is_all_of_the_backends_that_are_asked(config: dict[str, Any], tmp_path: Path) -> None:
    """`reap --all` ends sandboxes of living owners too, as it says: those that its backends can see, and no others."""
    for name in ("apart", "nothing"):
        (tmp_path / name).mkdir(mode=0o711)
    apart = SandboxPool("local", base_dir=str(tmp_path / "apart"))
    # All names are taken, and Docker's daemon is for none of them: what others do here is not for this test to end.
    mine = {name: own for name, own in config["backends"].items() if name != "docker"}
    taken = {name: {"type": "local", "base_dir": str(tmp_path / "nothing")} for name in backend_names()}
    named = {**config, "backends": taken | mine}
    pools = [SandboxPool.from_config(named, backend=name) for name in mine]
    async with AsyncExitStack() as held:
        slots = [
            await held.enter_async_context((await held.enter_async_context(pool)).slot()) for pool in [apart, *pools]
        ]
        rows = await to_thread.run_sync(lambda: cli("reap", "--config", written(tmp_path, named), "--all"))
        assert {row["sandbox"] for row in rows} == {slot.sandbox for slot in slots[1:]}
        assert (await slots[0].run("echo untouched")).stdout == "untouched\n"
        for slot, pool in zip(slots[1:], pools, strict=True):
            with pytest.raises(SandboxDied):
                await slot.run("echo gone")
            async with pool.slot() as fresh:
                assert (await fresh.run("echo fresh")).stdout == "fresh\n"
