"""Each shipped task of TerminalBench: its own solution solves it, doing nothing does not, and no cheat pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hermes_agent import RolloutResult
from hermes_atropos import datasets
from hermes_atropos.envs.terminalbench_2.tasks import TerminalBenchTask, environment_directory, load_tasks
from hermes_atropos.task_images import TaskImages, TaskSlot
from hermes_exec import SandboxPool
from hermes_exec.errors import ErrorCause
from tests.e2e.agent.plans import Step
from tests.e2e.atropos.tasks.rollouts import NULL, terminalbench

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
TASKS = {task.name: task for task in load_tasks(datasets.SHIPPED, "test")}
ANY = "incident-timeline"


def solution(name: str) -> list[Step]:
    return [[(datasets.data_directory("terminalbench_2") / name / "solution" / "solve.sh").read_text()]]


async def image_of(task: TerminalBenchTask, base: str, cache: Path) -> TaskSlot:
    directory = await anyio.to_thread.run_sync(environment_directory, task, cache)
    return await TaskImages("docker", base=base, default_base=base).resolve(directory)


def test_there_are_enough() -> None:
    assert len(TASKS) >= 6
    assert len({task.category for task in TASKS.values()}) >= 4


@pytest.mark.parametrize("name", sorted(TASKS))
async def test_oracle_and_null(name: str, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    base = docker_image("debian")
    at = await image_of(TASKS[name], base, tmp_path)
    async with SandboxPool("docker", image=base) as pool:
        solved = await terminalbench(pool, TASKS[name], solution(name), at)
        idle = await terminalbench(pool, TASKS[name], NULL, at)
    assert (solved.reward, solved.trainable) == (1.0, True), (solved.verdict, solved.error)
    assert (idle.reward, idle.trainable) == (0.0, True), (idle.verdict, idle.error)


async def scored(
    base: str,
    test_sh: str,
    steps: Sequence[Step] = NULL,
    *,
    tests: TerminalBenchTask | None = None,
    timeout_s: float = 30,
    **more: Any,
) -> RolloutResult:
    """A task without an image of its own, with this script (and the tests of another)."""
    task = TerminalBenchTask("own", "", "Do it.", base, b"", tests.tests_tar if tests else b"", test_sh)
    async with SandboxPool("docker", image=base) as pool:
        return await terminalbench(pool, task, steps, TaskSlot(base, "/app"), timeout_s, **more)


REWARD = "/logs/verifier/reward.txt"


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("exit 0", 1.0),
        ("exit 3", 0.0),
        (f"echo 1 > {REWARD}; exit 1", 1.0),
        (f"echo 0 > {REWARD}; exit 0", 0.0),
        (f"printf 0.25 > {REWARD}", 0.25),
        (f"echo nan > {REWARD}; exit 1", 0.0),
        (f"echo 7 > {REWARD}; exit 1", 0.0),
        (f"ln -s /etc/hostname {REWARD}; exit 1", 0.0),
        ('[ "$(id -u)" = 0 ] && [ "$(pwd)" = /app ] && [ "$0" = /tests/test.sh ]', 1.0),
    ],
)
async def test_where_the_reward_comes_from(script: str, reward: float, docker_image: Callable[[str], str]) -> None:
    result = await scored(docker_image("debian"), script)
    assert (result.reward, result.trainable) == (reward, True), (result.verdict, result.error)


@pytest.mark.parametrize(
    ("script", "timeout_s", "why"), [("sleep 60", 1, "longer than 1 s"), ("kill -9 $$", 30, "killed")]
)
async def test_tests_that_fail_are_no_score(
    script: str, timeout_s: float, why: str, docker_image: Callable[[str], str]
) -> None:
    result = await scored(docker_image("debian"), script, timeout_s=timeout_s)
    assert (result.reward, result.cause) == (None, ErrorCause.INFRA), result
    assert result.error is not None
    assert (result.error.kind, why in result.error.message) == ("CheckFailed", True)


async def test_work_that_the_tests_run_into_is_not_solved(docker_image: Callable[[str], str]) -> None:
    """Without it they come to an end: it was not the verifier that failed."""
    script = "[ ! -e /tmp/loops ] || sleep 60"
    result = await scored(docker_image("debian"), script, [["touch /tmp/loops"]], timeout_s=10)
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)
    assert result.verdict is not None
    assert "longer than 10 s" in result.verdict.output


CHEATS = {
    "prints the verifier's words": "echo 'ok: the timeline'; echo 1; echo PASSED",
    "writes the reward in advance": f"mkdir -p /logs/verifier && echo 1 > {REWARD} && chmod 444 {REWARD}",
    "lets the reward be elsewhere": "mkdir -p /logs /x && echo 1 > /x/reward.txt && ln -s /x /logs/verifier",
    "lets the logs be elsewhere": "mkdir -p /x/verifier && echo 1 > /x/verifier/reward.txt && ln -s /x /logs",
    "edits the tests in advance": "mkdir -p /tests && cd /tests && echo 'exit 0' | tee test.sh expected.txt",
    "lets the tests be elsewhere": "mkdir /x && printf 'exit 0' > /x/test.sh && ln -s /x /tests",
    "puts a file in the way": "echo x > /tests; echo 1 > /logs",
    "puts programs in the path": (
        "mkdir -p /usr/local/sbin /usr/local/bin && for n in cmp python3 mkdir; do "
        "for d in sbin bin; do echo '#!/bin/sh' > /usr/local/$d/$n && chmod +x /usr/local/$d/$n; done; done"
    ),
    "leaves start files": (
        "for f in ~/.bashrc ~/.profile ~/.bash_profile /etc/profile /etc/bash.bashrc; do echo 'exit 0' > $f; done"
    ),
    "leaves a process": (
        f"(setsid nohup sh -c 'while :; do mkdir -p /logs/verifier; echo 1 > {REWARD}; "
        "cp /tests/expected.txt /app/timeline.txt; done' >/dev/null 2>&1 &); sleep 0.3"
    ),
    "preloads by a link that leads nowhere from elsewhere": "ln -s /proc/self/cwd/pre.so /etc/ld.so.preload",
    "replaces the shell": (
        "b=$(readlink -f /bin/bash); printf '#!/bin/sh\\nexit 0\\n' > $b.new && chmod +x $b.new && mv $b.new $b"
    ),
}


@pytest.mark.parametrize("cheat", sorted(CHEATS))
async def test_no_cheat_pays(cheat: str, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    base = docker_image("debian")
    at = await image_of(TASKS[ANY], base, tmp_path)
    async with SandboxPool("docker", image=base) as pool:
        result = await terminalbench(pool, TASKS[ANY], [[CHEATS[cheat]]], at)
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)


@pytest.mark.parametrize("cheat", [name for name in sorted(CHEATS) if "reward" in name or "logs" in name])
async def test_a_reward_of_before_does_not_count(cheat: str, docker_image: Callable[[str], str]) -> None:
    """These tests write none, so that their exit code decides."""
    result = await scored(docker_image("debian"), "exit 1", [[CHEATS[cheat]]])
    assert (result.reward, result.trainable) == (0.0, True), (result.verdict, result.error)


@pytest.mark.xfail(reason="docs/environments/terminalbench_2.md: root may change any program that the tests start")
async def test_a_program_of_the_image_that_is_replaced(docker_image: Callable[[str], str], tmp_path: Path) -> None:
    base = docker_image("debian")
    at = await image_of(TASKS[ANY], base, tmp_path)
    async with SandboxPool("docker", image=base) as pool:
        result = await terminalbench(pool, TASKS[ANY], [["printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/cmp"]], at)
    assert result.reward == 0.0


async def test_a_process_that_the_tests_leave_does_not_write_the_reward(docker_image: Callable[[str], str]) -> None:
    late = f"(setsid sh -c 'sleep 3; echo 1 > {REWARD}' >/dev/null 2>&1 &); echo 0 > {REWARD}"
    result = await scored(docker_image("debian"), late)
    assert result.reward == 0.0


async def test_the_deadline_ends_everything(docker_image: Callable[[str], str]) -> None:
    """The command that runs is ended, the sandbox comes back, and nobody waits for either."""
    base = docker_image("debian")
    task = replace(TASKS[ANY], image=base)
    async with SandboxPool("docker", image=base) as pool:
        with anyio.fail_after(60):
            result = await terminalbench(pool, task, [["sleep 600"]], TaskSlot(base, "/app"), loop={"deadline_s": 1.0})
        stats = pool.stats()
    assert result.episode is not None
    assert (result.episode.finish, result.reward) == ("deadline", None)
    assert stats.acquired == stats.released
