"""Agents: the driver's cost of a tool call with its model request and of each of many episodes at once, and the
episodes that are lost when the endpoint fails for a long time.

Each measurement runs in its own driver, `python -m benchmarks.agent NAME`, so that processor time and memory belong to
it alone. The model is a server in another process, `tests.e2e.agent.flaky_endpoint`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from benchmarks.measurements import Figure, Measurements, progress
from benchmarks.memory import memory_kb
from benchmarks.options import Options
from hermes_agent import AgentLoop, Completion, Episode, Message, OpenAIModel
from hermes_agent.models.scripted import call
from hermes_exec import SandboxPool, Slot
from hermes_exec.tools import Toolbox
from tests.e2e.agent.flaky_endpoint import Faults

ROOT = Path(__file__).resolve().parent.parent
TURNS, EPISODES, ROUNDS, AT_ONCE = 20, 8, 5, 8
MANY, MANY_TURNS, SLOTS_A_SANDBOX = 1000, 3, 64
FAULTS = Faults(per_s=2, faults=0.05, away_after=450, away_s=60.0)
FAULTY_EPISODES, FAULTY_AT_ONCE = 300, 32
CPU = "driver CPU of a tool call with its model request"
NAIVE = f"{CPU}, a plain loop with chat.completions.create"
RATIO = "ratio to the plain loop"
MEMORY = f"driver memory of one of {MANY:,} episodes at once"
MANY_CPU = f"driver CPU of a tool call of {MANY:,} episodes at once"
LOST_EPISODES = "episodes of 300 lost at 2 requests a second, 5 % faults, an outage of 60 s"
REQUESTS = "requests there, per turn and fault"
TIME_LIMIT_S = {"cpu": 300.0, "many": 300.0, "faults": 1200.0}

Figures = dict[str, tuple[float, str]]


async def measure(_: Options) -> Measurements:
    """Run the drivers one after the other."""
    return await run_drivers("agent", __name__, TIME_LIMIT_S)


async def run_drivers(part: str, module: str, time_limit_s: Mapping[str, float]) -> Measurements:
    """Run the drivers of a module one after the other, each with a time limit. Names of figures begin with `part`."""
    measurements = Measurements()
    for name, limit_s in time_limit_s.items():
        progress(f"{part}: {name}, up to {limit_s:.0f} s")
        try:
            figures = await run_driver_module(module, name, limit_s)
        except (TimeoutError, RuntimeError) as error:
            measurements.leave_out(f"{part}, {name}", repr(error))
            continue
        measurements.figures |= {f"{part}: {label}": Figure(value, unit) for label, (value, unit) in figures.items()}
    return measurements


async def run_driver_module(module: str, name: str, time_limit_s: float) -> Figures:
    """Return the figures of a driver.

    Raises:
        TimeoutError: If the driver takes too long.
        RuntimeError: If the driver fails.
    """
    with anyio.fail_after(time_limit_s):
        completed = await anyio.run_process([sys.executable, "-m", module, name], cwd=ROOT, stderr=None, check=False)
    if completed.returncode != 0:
        raise RuntimeError(f"the driver ended with {completed.returncode}")
    figures: Figures = json.loads(completed.stdout.splitlines()[-1])
    return figures


@asynccontextmanager
async def serve_endpoint(faults: Faults) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Yield the URL of a server in another process, and a dict that has the server's log after the block."""
    log: dict[str, int] = {}
    command = [sys.executable, "-m", "tests.e2e.agent.flaky_endpoint", json.dumps(asdict(faults))]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), log
        process.stdin.close()
        log.update(json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


Run = Callable[[Slot, int], Awaitable[None]]


async def run_in_slots(slots: Sequence[Slot], count: int, run: Run) -> None:
    """Run this many episodes, one at a time in each slot."""
    left: Iterator[int] = iter(range(count))

    async def work(slot: Slot) -> None:
        for number in left:
            await run(slot, number)

    async with anyio.create_task_group() as tasks:
        for slot in slots:
            tasks.start_soon(work, slot)


async def measure_cpu() -> Figures:
    """Measure the processor time of this process per tool call: this library's loop and the plain loop in turn. The
    first round of each is not counted.
    """
    async with (
        serve_endpoint(Faults(turns=TURNS + 1)) as (url, _),
        SandboxPool("local", slots_per_sandbox=AT_ONCE) as pool,
        pool.slots(AT_ONCE) as slots,
        plain_loop(url) as plain,
    ):
        model = OpenAIModel("m", base_url=url)

        async def ours(slot: Slot, number: int) -> None:
            episode = await AgentLoop(model, Toolbox(slot)).run(f"episode {number}")
            assert (episode.finish, len(episode.tool_calls)) == ("answered", TURNS)

        times_ms: dict[str, list[float]] = {CPU: [], NAIVE: []}
        for _ in range(ROUNDS + 1):
            for name, run in ((CPU, ours), (NAIVE, plain)):
                begin = time.process_time()
                await run_in_slots(slots, EPISODES, run)
                times_ms[name].append((time.process_time() - begin) / EPISODES / TURNS * 1000)
        await model.aclose()
    figures = {name: sorted(times[1:])[ROUNDS // 2] for name, times in times_ms.items()}
    return {
        **{name: (ms, "ms") for name, ms in figures.items()},
        f"{CPU}, {RATIO}": (figures[CPU] / figures[NAIVE], "×"),
    }


@asynccontextmanager
async def plain_loop(url: str) -> AsyncIterator[Run]:
    """Run the simplest possible agent loop with the same tools."""
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def run(slot: Slot, number: int) -> None:
            toolbox = Toolbox(slot)
            tools: Any = [{name: tool[name] for name in ("type", "function")} for tool in toolbox.schemas]
            messages: list[Any] = [{"role": "user", "content": f"episode {number}"}]
            while True:
                answer = await client.chat.completions.create(
                    model="m", messages=messages, tools=tools, temperature=1.0
                )
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for tool_call in message.tool_calls or ():
                    assert tool_call.type == "function"
                    result = await toolbox.call(tool_call.function.name, tool_call.function.arguments, tool_call.id)
                    messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": result.content})
                if not message.tool_calls:
                    return

        yield run


class _BarrierModel:
    """A model whose episodes make `MANY_TURNS` calls each, and wait for each other before the last answer."""

    def __init__(self) -> None:
        self.arrived = 0
        self.all_arrived, self.proceed = anyio.Event(), anyio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn < MANY_TURNS:
            return Completion(None, (call("terminal", {"command": f"echo {turn}"}, call_id=f"c{turn}"),))
        self.arrived += 1
        if self.arrived == MANY:
            self.all_arrived.set()
        await self.proceed.wait()
        return Completion("done")


async def measure_many() -> Figures:
    """Measure memory and processor time of this process while all episodes run at once, each in a slot."""
    model, episodes = _BarrierModel(), list[Episode]()
    sandboxes = -(-MANY // SLOTS_A_SANDBOX)
    async with (
        SandboxPool("local", slots_per_sandbox=SLOTS_A_SANDBOX, max_sandboxes=sandboxes) as pool,
        pool.slots(MANY) as slots,
    ):
        await run_in_slots(slots, MANY, lambda slot, _: _run_first_command(slot))
        gc.collect()
        before_kb, begin = memory_kb(os.getpid()), time.process_time()

        async def episode(slot: Slot) -> None:
            episodes.append(await AgentLoop(model, Toolbox(slot)).run("go"))

        async with anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(episode, slot)
            await model.all_arrived.wait()
            spent_s, after_kb = time.process_time() - begin, memory_kb(os.getpid())
            model.proceed.set()
        assert {each.finish for each in episodes} == {"answered"}
    return {
        MEMORY: ((after_kb - before_kb) / MANY, "KiB"),
        MANY_CPU: (spent_s / MANY / MANY_TURNS * 1000, "ms"),
    }


async def _run_first_command(slot: Slot) -> None:
    assert (await slot.run(["true"])).ok


class _EpisodeTurns(NamedTuple):
    finish: str
    contents: tuple[str, ...]


async def measure_faults() -> Figures:
    """Count the episodes that ended differently than on a reliable endpoint, and the requests per turn and fault."""
    reliable, _ = await _run_episodes(Faults())
    episodes, log = await _run_episodes(FAULTS)
    lost = sum(episodes[number] != turns for number, turns in reliable.items())
    return {
        LOST_EPISODES: (lost, ""),
        REQUESTS: (log["requests"] / (log["good"] + log["faults"]), "×"),
        "refused requests there": (log["throttled"], ""),
        "time there": (log["elapsed_s"], "s"),
    }


async def _run_episodes(faults: Faults) -> tuple[dict[int, _EpisodeTurns], dict[str, Any]]:
    episodes: dict[int, _EpisodeTurns] = {}
    async with (
        serve_endpoint(faults) as (url, log),
        SandboxPool("local", slots_per_sandbox=FAULTY_AT_ONCE) as pool,
        pool.slots(FAULTY_AT_ONCE) as slots,
    ):
        model = OpenAIModel("m", base_url=url)

        async def run(slot: Slot, number: int) -> None:
            episode = await AgentLoop(model, Toolbox(slot)).run(f"episode {number}")
            episodes[number] = _EpisodeTurns(episode.finish, tuple(str(each["content"]) for each in episode.messages))

        begin = time.perf_counter()
        await run_in_slots(slots, FAULTY_EPISODES, run)
        elapsed_s = time.perf_counter() - begin
        await model.aclose()
    return episodes, {**log, "elapsed_s": elapsed_s}


DRIVERS: dict[str, Callable[[], Awaitable[Figures]]] = {
    "cpu": measure_cpu,
    "many": measure_many,
    "faults": measure_faults,
}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(DRIVERS[sys.argv[1]]())))  # type: ignore[arg-type]
