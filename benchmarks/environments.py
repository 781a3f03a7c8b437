"""RL environments: the driver's cost of a turn and of each of many rollouts at once, and the time from a signal until
every slot is released.

Each measurement runs in its own driver, `python -m benchmarks.environments NAME`, and the inference server runs in
another process, so that processor time and memory belong to the environment alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks.agent import Figures, run_drivers
from benchmarks.measurements import Measurements
from benchmarks.options import Options

ROOT = Path(__file__).resolve().parent.parent
TURNS, AT_ONCE, ROUNDS = 20, 32, 5
MANY, MANY_TURNS, SLOTS_A_SANDBOX = 512, 5, 64
CPU = f"driver CPU of a turn, {AT_ONCE} rollouts at once"
PLAIN = f"{CPU}, a plain environment with ManagedServer and subprocesses"
RATIO = "ratio to the plain environment"
MEMORY = f"driver memory, {MANY} rollouts at once"
RELEASE = f"from SIGTERM to the release of every slot, {AT_ONCE} rollouts in a tool call"
EXIT = "from SIGTERM to the end of the process"
TIME_LIMIT_S = 300.0


async def measure(_: Options) -> Measurements:
    """Run the drivers one after the other."""
    return await run_drivers("environments", __name__, dict.fromkeys(DRIVERS, TIME_LIMIT_S))


@asynccontextmanager
async def serve_model(turns: int) -> AsyncIterator[tuple[Path, str]]:
    """Yield a tokenizer, and the URL of an inference server in another process."""
    from tests.e2e.atropos.inference_server import make_tokenizer

    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as directory:
        tokenizer = make_tokenizer(Path(directory) / "tokenizer")
        command = [sys.executable, "-m", "tests.e2e.atropos.counting", str(tokenizer), str(turns)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield tokenizer, (await process.stdout.readline()).decode().strip()
        finally:
            process.stdin.close()
            await process.wait()


async def measure_cpu() -> Figures:
    """Measure the processor time of this process per turn: this library's and the plain environment in turn. The first
    round of each is not counted.
    """
    from tests.e2e.atropos.counting import CountingEnv
    from tests.e2e.atropos.inference_server import make_env

    times_ms: dict[str, list[float]] = {CPU: [], PLAIN: []}
    async with serve_model(TURNS) as (tokenizer, url):
        settings: dict[str, Any] = {
            "group_size": AT_ONCE,
            "slots_per_sandbox": AT_ONCE,
            "max_token_length": 30_000,
            "turns": TURNS,
        }
        env = make_env(CountingEnv, tokenizer, url, **settings)
        async with env.config.make_pool() as env.pool:

            async def ours() -> None:
                group, _ = await env.collect_trajectories(0)
                assert group["scores"] == [1.0] * AT_ONCE

            async def plain() -> None:
                assert await asyncio.gather(*(_run_plain_rollout(env) for _ in range(AT_ONCE))) == [1.0] * AT_ONCE

            async def rounds() -> None:
                for _ in range(ROUNDS + 1):
                    for name, work in ((CPU, ours), (PLAIN, plain)):
                        begin = time.process_time()
                        await work()
                        times_ms[name].append((time.process_time() - begin) / AT_ONCE / TURNS * 1000)

            await env.scheduler.run(rounds, 1)
    medians = {name: sorted(times[1:])[ROUNDS // 2] for name, times in times_ms.items()}
    return {
        **{name: (ms, "ms") for name, ms in medians.items()},
        f"{CPU}, {RATIO}": (medians[CPU] / medians[PLAIN], "×"),
    }


async def _run_plain_rollout(env: Any) -> float:  # noqa: ANN401
    """Run a simple rollout over atroposlib: the history as text, and commands as subprocesses of this process."""
    from hermes_exec.tools.catalog.schemas import schemas

    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="hermes-bench-")
    tools, stop_ids = [schemas()["terminal"]], [env.tokenizer.eos_token_id]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "count"}]
    async with env.server.managed_server(tokenizer=env.tokenizer) as managed:
        while True:
            answer = await managed.chat_completion(
                messages=messages, n=1, max_tokens=4000, temperature=1.0, tools=tools, stop_token_ids=stop_ids
            )
            text = answer.choices[0].message.content
            messages.append({"role": "assistant", "content": text})
            match = re.search(r"<tool_call>\n(.*)\n</tool_call>", text)
            if match is None:
                break
            command = json.loads(match[1])["arguments"]["command"]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_shell(command, cwd=directory, stdout=pipe, stderr=pipe)
            output, _ = await process.communicate()
            content = json.dumps({"output": output.decode(), "exit_code": process.returncode, "error": None})
            messages.append({"role": "tool", "content": content})
        assert len(managed.get_state()["nodes"]) == 1
    turns = (Path(directory) / "turns").read_text().split()
    await asyncio.to_thread(shutil.rmtree, directory)
    return float(turns == [str(turn) for turn in range(TURNS - 1)])


async def measure_many() -> Figures:
    """Measure the peak memory of this process while all rollouts run at once."""
    from tests.e2e.atropos.counting import CountingEnv
    from tests.e2e.atropos.inference_server import make_env

    async with serve_model(MANY_TURNS) as (tokenizer, url):
        sandboxes = MANY // SLOTS_A_SANDBOX
        settings: dict[str, Any] = {
            "group_size": MANY,
            "slots_per_sandbox": SLOTS_A_SANDBOX,
            "max_sandboxes": sandboxes,
            "turns": MANY_TURNS,
        }
        env = make_env(CountingEnv, tokenizer, url, **settings)
        begin = time.process_time()
        async with env.config.make_pool() as env.pool:

            async def run_group() -> None:
                group, _ = await env.collect_trajectories(0)
                assert group["scores"] == [1.0] * MANY

            await env.scheduler.run(run_group, 1)
        spent_s = time.process_time() - begin
    return {
        MEMORY: (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"),
        f"driver CPU of a turn, {MANY} rollouts at once": (spent_s / MANY / MANY_TURNS * 1000, "ms"),
    }


async def measure_ends() -> Figures:
    """Measure the time from SIGTERM until the commands of all rollouts have ended and their slots are released."""
    return await anyio.to_thread.run_sync(_measure_ends)


def _measure_ends() -> Figures:
    from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_tokenizer, serving
    from tests.e2e.atropos.trainer import environment, flags, run_api

    seconds = f"{3600 + os.getpid() / 1e6:.6f}"
    release_times, end_times = [], []
    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as directory:
        tokenizer = make_tokenizer(Path(directory) / "tokenizer")
        policy = PolicyServer(load(tokenizer), lambda _: call("terminal", command=f"sleep {seconds}"))
        with run_api() as api, serving(policy) as server:
            api.register(batch_size=AT_ONCE)
            more = ("--env.rollout_server_url", api.url, "--env.slots_per_sandbox", str(AT_ONCE))
            for _ in range(ROUNDS):
                with environment("serve", *flags(tokenizer, server.url, *more, group_size=AT_ONCE // 4)) as env:
                    _wait_until(lambda: _count_sleeping(seconds) == AT_ONCE, 60)
                    begin = time.perf_counter()
                    env.send_signal(signal.SIGTERM)
                    _wait_until(lambda: _count_sleeping(seconds) == 0, 60)
                    release_times.append(time.perf_counter() - begin)
                    env.communicate(timeout=60)
                    end_times.append(time.perf_counter() - begin)
    return {RELEASE: (sorted(release_times)[ROUNDS // 2], "s"), EXIT: (sorted(end_times)[ROUNDS // 2], "s")}


def _count_sleeping(seconds: str) -> int:
    """Count the processes `sleep SECONDS` of this machine."""
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return sum(line.strip() == f"sleep {seconds}" for line in listed.splitlines())


def _wait_until(condition: Callable[[], bool], within_s: float) -> None:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s} s")
        time.sleep(0.02)


DRIVERS: dict[str, Callable[[], Awaitable[Figures]]] = {"cpu": measure_cpu, "many": measure_many, "ends": measure_ends}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(DRIVERS[sys.argv[1]]())))  # type: ignore[arg-type]
