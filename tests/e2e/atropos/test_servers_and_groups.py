"""What becomes of groups when the server of a policy fails, refuses, or is away."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tenacity import Future, RetryError

from hermes_agent import CheckFailed, Episode, Verdict
from hermes_atropos import EnvironmentStopped, SandboxSpec, ToolContext
from hermes_atropos.envs.terminal_test import TRAIN, FileTask, TerminalTestEnv
from hermes_exec import Acquired, ConfigError
from tests.e2e.atropos.inference_server import (
    PolicyServer,
    call,
    load,
    make_env,
    process,
    serving,
    solve,
)
from tests.support.outside import runner_pid
from tests.support.waiting import until
from tests.unit.agent.tokens.server import Answer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("fault", "groups", "told"),
    [
        (RuntimeError("the verifier broke"), 1, "the code of the environment: RuntimeError: the verifier broke"),
        (CheckFailed("took too long"), 2, "CheckFailed: took too long"),
        (FileNotFoundError(2, "No such file", "out"), 2, "infra: FileNotFoundError: [Errno 2] No such file: 'out'"),
        (ValueError("no number"), 1, "the code of the environment: ValueError: no number"),
        (ConfigError("no such thing"), 1, "ConfigError: no such thing"),
    ],
)
async def test_groups_that_cannot_be_filled_end_the_run(
    fault: Exception, groups: int, told: str, tokenizer: Path, tmp_path: Path
) -> None:
    class Fails(TerminalTestEnv):
        async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
            raise fault

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = tmp_path / "groups.jsonl"
        env = make_env(
            Fails, tokenizer, server.url, max_failed_groups=2, max_rerolls=1, data_path_to_save_groups=str(path)
        )
        with pytest.raises(EnvironmentStopped, match=f"dropped groups in a row: {groups}") as stopped:
            await process(env, 5)
    assert told in str(stopped.value)
    assert not path.exists()
    stats = env.pool.stats()
    assert stats.acquired == stats.released


async def test_dead_server_beside_a_good_one_delays_no_group(
    tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        dead = "http://127.0.0.1:9/v1"
        env = make_env(TerminalTestEnv, tokenizer, dead, server.url, data_path_to_save_groups=path)
        with anyio.fail_after(60):
            groups = await process(env, 3)
    assert [group["scores"] for group in groups] == [[1.0, 1.0]] * 3
    assert f"the inference server {dead} is left out" in caplog.text


@pytest.mark.parametrize("command", ["process", "evaluate"])
async def test_cause_of_a_loss_is_the_error_that_came_first(command: str, tokenizer: Path, tmp_path: Path) -> None:
    """The calls of the turn that did not come to an end are only what followed."""
    opened, sandboxes = anyio.Event(), set[str]()

    class Watched(TerminalTestEnv):
        async def setup(self) -> None:
            await super().setup()
            opened.set()

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            opened.set()
            await self.evaluate_items(TRAIN[:1], key=lambda item: item.path)

    policy = lambda _: call("terminal", command="sleep 60") * 3  # noqa: E731
    rollouts = 4 if command == "process" else 1
    with serving(PolicyServer(load(tokenizer), policy)) as server:
        env = make_env(
            Watched, tokenizer, server.url, group_size=4, slots_per_sandbox=1, max_sandboxes=4, max_rerolls=0,
            max_failed_groups=1, data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
        )  # fmt: skip

        async def kill() -> None:
            await opened.wait()
            async for event in env.pool.events():
                if isinstance(event, Acquired):
                    sandboxes.add(str(event.sandbox))
                    if len(sandboxes) == rollouts:
                        break
            await until(lambda: len(server.bodies) == rollouts)
            os.kill(runner_pid(sandboxes.pop()), signal.SIGKILL)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            with pytest.raises(EnvironmentStopped, match=r": SandboxDied: ") as stopped:
                await (process(env, 1) if command == "process" else env._run_evaluate())
    assert "ended before" not in str(stopped.value)


async def test_an_author_who_asks_for_what_cannot_be_is_told(tokenizer: Path, tmp_path: Path) -> None:
    class Wrong(TerminalTestEnv):
        def sandbox_spec(self, item: FileTask) -> SandboxSpec:
            return SandboxSpec(loop={"max_turn": 3})

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(Wrong, tokenizer, server.url, max_failed_groups=1, data_path_to_save_groups=path)
        with pytest.raises(EnvironmentStopped, match="AgentLoop has no 'max_turn'; did you mean 'max_turns'"):
            await process(env, 1)


@pytest.mark.parametrize(("server_type", "most"), [("vllm", 3), ("openai", 27)])
async def test_a_server_that_always_fails_is_told_with_its_cause(
    server_type: str, most: int, tokenizer: Path, tmp_path: Path
) -> None:
    shape = "openai" if server_type == "openai" else "vllm"
    with serving(PolicyServer(load(tokenizer), lambda _: Answer(500, b"{}"), shape)) as server:
        env = make_env(
            TerminalTestEnv, tokenizer, server.url, server_type=server_type, group_size=1, max_failed_groups=1,
            max_rerolls=0, data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
        )  # fmt: skip
        with pytest.raises(EnvironmentStopped) as stopped:
            await process(env, 1)
    assert "RetryError" not in str(stopped.value)
    assert "500" in str(stopped.value)
    assert 0 < len(server.bodies) <= most


async def test_a_refused_key_ends_the_run_at_once(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), lambda _: Answer(401, b"{}"))) as server:
        path = str(tmp_path / "groups.jsonl")
        env = make_env(TerminalTestEnv, tokenizer, server.url, data_path_to_save_groups=path)
        with pytest.raises(EnvironmentStopped, match=r"AccessRefused.*401"):
            await process(env, 5)
    assert len(server.bodies) <= 2 * 3


async def test_a_server_that_is_away_is_waited_for(tokenizer: Path, tmp_path: Path) -> None:
    with serving(PolicyServer(load(tokenizer), solve)) as early:
        url, port = early.url, int(early.url.rsplit(":", 1)[1].removesuffix("/v1"))
    server = PolicyServer(load(tokenizer), solve)
    env = make_env(
        TerminalTestEnv, tokenizer, url, max_rerolls=0, data_path_to_save_groups=str(tmp_path / "groups.jsonl")
    )
    comes_back = threading.Event()

    def later() -> None:
        comes_back.wait(60)
        with serving(server, port):
            ended.wait(120)

    ended = threading.Event()
    thread = threading.Thread(target=later)
    thread.start()
    try:

        async def wait() -> None:
            await until(lambda: env.pool.stats().slots_in_use == 2)
            await anyio.sleep(3)
            comes_back.set()

        async with anyio.create_task_group() as tasks:
            env.pool = env.config.make_pool()
            tasks.start_soon(wait)
            (group,) = await process(env, 1)
    finally:
        comes_back.set()
        ended.set()
        thread.join()
    assert group["scores"] == [1.0, 1.0]


async def test_a_server_that_stays_away_is_an_error_with_its_url(tokenizer: Path, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    env = make_env(
        TerminalTestEnv, tokenizer, url, group_size=1, max_rerolls=0, max_failed_groups=1, server_wait_s=0,
        data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
    )  # fmt: skip
    with pytest.raises(EnvironmentStopped, match=r"127\.0\.0\.1:9/v1.*Connect"):
        await process(env, 1)


async def test_a_server_of_atropos_that_is_away_is_waited_for(
    tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = itertools.count()

    async def ask() -> None:
        if next(tries) < 2:
            failed = Future(1)
            failed.set_exception(aiohttp.ClientConnectionError("gone"))
            raise RetryError(failed)

    with serving(PolicyServer(load(tokenizer), solve)) as server:
        await make_env(TerminalTestEnv, tokenizer, server.url)._ask_api(ask)
        assert caplog.text.count("waiting for the atropos server") == 1
        tries = itertools.count()
        with pytest.raises(RetryError):
            await make_env(TerminalTestEnv, tokenizer, server.url, server_wait_s=0)._ask_api(ask)
