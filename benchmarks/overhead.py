"""The overhead of a call: the parts of a no-op's time, and the processor time of each process on its way."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

from anyio import to_thread

from benchmarks import hermes
from benchmarks.calls import DOCKER, LOCAL
from benchmarks.contender import NOOP, ContenderMissing
from benchmarks.measurements import Discipline, Figure, Measurements, Sample, progress
from benchmarks.memory import children, runner_pid
from benchmarks.options import Options

PARTS = "no-op in parts"
COMMAND, ADDED = "the command, from fork to end", "added by driver, stream and runner"
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
Processes = dict[str, int]


async def measure(options: Options) -> Measurements:
    """Call in rounds, both backends in turn."""
    measurements = Measurements()
    discipline = Discipline(PARTS, "times", {})
    measurements.disciplines.append(discipline)
    async with AsyncExitStack() as stack:
        slots = {LOCAL: (await stack.enter_async_context(hermes.open_local())).slot}
        try:
            slots[DOCKER] = (await stack.enter_async_context(hermes.open_docker())).slot
        except ContenderMissing as error:
            measurements.leave_out(f"{DOCKER}, {PARTS}", error)
        spent: dict[str, dict[str, float]] = {name: {} for name in slots}
        for number in range(options.rounds + 1):
            progress(f"{PARTS}: round {number} of {options.rounds}")
            for name, slot in slots.items():
                # The first round warms up and is not counted.
                command, overhead = (
                    discipline.sample(f"{name}: {part}") if number else Sample() for part in (COMMAND, ADDED)
                )
                assert (await slot.run(NOOP)).ok
                processes = await to_thread.run_sync(find_processes, name, slot.sandbox)
                before = {process: processor_ms(pid) for process, pid in processes.items()}
                end = time.perf_counter() + options.slice_s
                while (begin := time.perf_counter()) < end:
                    result = await slot.run(NOOP)
                    duration_s = time.perf_counter() - begin
                    command.add_one(result.duration_s)
                    overhead.add_one(duration_s - result.duration_s)
                for process, pid in processes.items():
                    if number:
                        spent[name][process] = spent[name].get(process, 0) + processor_ms(pid) - before[process]
    for name, each in spent.items():
        calls = len(discipline.sample(f"{name}: {COMMAND}").times_ms)
        for process, took_ms in each.items():
            measurements.figures[f"{name}: processor time of the {process} for a no-op"] = Figure(took_ms / calls, "ms")
    return measurements


def find_processes(name: str, sandbox: str) -> Processes:
    """Return the ids of the processes on the way of a call, as seen on this host."""
    runner = runner_pid("local" if name == LOCAL else "docker", sandbox)
    (agent,) = children(runner)
    return {"driver": os.getpid(), "serving runner": runner, "slot's agent": agent}


def processor_ms(pid: int) -> float:
    """Return the processor time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS
