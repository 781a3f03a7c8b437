"""Agents: the driver's cost of a tool call with its model request, of each of many episodes at once, and of an endpoint
that fails for a long time.

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

from benchmarks.measured import Figure, Measured, progress
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
UNKIND_EPISODES, UNKIND_AT_ONCE = 300, 32
CPU = "driver CPU of a tool call with its model request"
NAIVE = f"{CPU}, a plain loop with chat.completions.create"
RATIO = "ratio to the plain loop"
MEMORY = f"driver memory of one of {MANY:,} episodes at once"
MANY_CPU = f"driver CPU of a tool call of {MANY:,} episodes at once"
LOST = "episodes of 300 lost at 2 requests a second, 5 % faults, an outage of 60 s"
REQUESTS = "requests there, per turn and fault"
LONGEST_S = {"cpu": 300.0, "many": 300.0, "faults": 1200.0}

Figures = dict[str, tuple[float, str]]


async def measure(_: Options) -> Measured:
    """Run the drivers one after the other."""
    return await by_drivers("agent", __name__, LONGEST_S)


async def by_drivers(part: str, module: str, longest_s: Mapping[str, float]) -> Measured:
    """Run the drivers of a module one after the other, each with a time limit. Names of figures begin with `part`."""
    measured = Measured()
    for name, limit_s in longest_s.items():
        progress(f"{part}: {name}, up to {limit_s:.0f} s")
        try:
            figures = await figures_of(module, name, limit_s)
        except (TimeoutError, RuntimeError) as error:
            measured.leave_out(f"{part}, {name}", repr(error))
            continue
        measured.figures |= {f"{part}: {what}": Figure(value, unit) for what, (value, unit) in figures.items()}
    return measured


async def figures_of(module: str, name: str, longest_s: float) -> Figures:
    """Return the figures of a driver.

    Raises:
        TimeoutError: If the driver takes too long.
        RuntimeError: If the driver fails.
    """
    with anyio.fail_after(longest_s):
        ended = await anyio.run_process([sys.executable, "-m", module, name], cwd=ROOT, stderr=None, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"the driver ended with {ended.returncode}")
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    return figures


@asynccontextmanager
async def serve_endpoint(how: Faults) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Yield the URL of a server in another process, and a dict that has the server's log after the block."""
    log: dict[str, int] = {}
    command = [sys.executable, "-m", "tests.e2e.agent.flaky_endpoint", json.dumps(asdict(how))]
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


async def in_slots(slots: Sequence[Slot], count: int, run: Run) -> None:
    """Run this many episodes, one at a time in each slot."""
    left: Iterator[int] = iter(range(count))

    async def work(slot: Slot) -> None:
        for number in left:
            await run(slot, number)

    async with anyio.create_task_group() as tasks:
        for slot in slots:
            tasks.start_soon(work, slot)


async def cpu() -> Figures:
    """Measure the processor time of this process per tool call: our loop and the plain loop in turn, without the first
    rounds.
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

        spent: dict[str, list[float]] = {CPU: [], NAIVE: []}
        for _ in range(ROUNDS + 1):
            for name, run in ((CPU, ours), (NAIVE, plain)):
                begin = time.process_time()
                await in_slots(slots, EPISODES, run)
                spent[name].append((time.process_time() - begin) / EPISODES / TURNS * 1000)
        await model.aclose()
    figures = {name: sorted(times[1:])[ROUNDS // 2] for name, times in spent.items()}
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
                for wanted in message.tool_calls or ():
                    assert wanted.type == "function"
                    result = await toolbox.call(wanted.function.name, wanted.function.arguments, wanted.id)
                    messages.append({"role": "tool", "tool_call_id": wanted.id, "content": result.content})
                if not message.tool_calls:
                    return

        yield run


class _Gathering:
    """A model whose episodes make `MANY_TURNS` calls each, and wait for each other before the last answer."""

    def __init__(self) -> None:
        self.here = 0
        self.all_here, self.go_on = anyio.Event(), anyio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn < MANY_TURNS:
            return Completion(None, (call("terminal", {"command": f"echo {turn}"}, call_id=f"c{turn}"),))
        self.here += 1
        if self.here == MANY:
            self.all_here.set()
        await self.go_on.wait()
        return Completion("done")


async def many() -> Figures:
    """Measure memory and processor time of this process while all episodes run at once, each in a slot."""
    model, done = _Gathering(), list[Episode]()
    sandboxes = -(-MANY // SLOTS_A_SANDBOX)
    async with (
        SandboxPool("local", slots_per_sandbox=SLOTS_A_SANDBOX, max_sandboxes=sandboxes) as pool,
        pool.slots(MANY) as slots,
    ):
        await in_slots(slots, MANY, lambda slot, _: _first_command(slot))
        gc.collect()
        before_kb, begin = memory_kb(os.getpid()), time.process_time()

        async def episode(slot: Slot) -> None:
            done.append(await AgentLoop(model, Toolbox(slot)).run("go"))

        async with anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(episode, slot)
            await model.all_here.wait()
            spent_s, after_kb = time.process_time() - begin, memory_kb(os.getpid())
            model.go_on.set()
        assert {each.finish for each in done} == {"answered"}
    return {
        MEMORY: ((after_kb - before_kb) / MANY, "KiB"),
        MANY_CPU: (spent_s / MANY / MANY_TURNS * 1000, "ms"),
    }


async def _first_command(slot: Slot) -> None:
    assert (await slot.run(["true"])).ok


class _Turns(NamedTuple):
    finish: str
    contents: tuple[str, ...]


async def faults() -> Figures:
    """Count the episodes that ended differently than on a reliable endpoint, and the requests per turn and fault."""
    kind, _ = await _episodes(Faults())
    done, log = await _episodes(FAULTS)
    lost = sum(done[number] != turns for number, turns in kind.items())
    return {
        LOST: (lost, ""),
        REQUESTS: (log["requests"] / (log["good"] + log["faults"]), "×"),
        "refused requests there": (log["throttled"], ""),
        "time there": (log["elapsed_s"], "s"),
    }


async def _episodes(how: Faults) -> tuple[dict[int, _Turns], dict[str, Any]]:
    done: dict[int, _Turns] = {}
    async with (
        serve_endpoint(how) as (url, log),
        SandboxPool("local", slots_per_sandbox=UNKIND_AT_ONCE) as pool,
        pool.slots(UNKIND_AT_ONCE) as slots,
    ):
        model = OpenAIModel("m", base_url=url)

        async def run(slot: Slot, number: int) -> None:
            episode = await AgentLoop(model, Toolbox(slot)).run(f"episode {number}")
            done[number] = _Turns(episode.finish, tuple(str(each["content"]) for each in episode.messages))

        begin = time.perf_counter()
        await in_slots(slots, UNKIND_EPISODES, run)
        elapsed_s = time.perf_counter() - begin
        await model.aclose()
    return done, {**log, "elapsed_s": elapsed_s}


DRIVERS: dict[str, Callable[[], Awaitable[Figures]]] = {"cpu": cpu, "many": many, "faults": faults}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(DRIVERS[sys.argv[1]]())))  # type: ignore[arg-type]
