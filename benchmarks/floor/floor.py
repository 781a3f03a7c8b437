"""Measure the cost of starting a program in Python. Runs in a container, with the standard library only.

`floor.py run|rested|asyncio SECONDS AT_ONCE PROGRAM ARGS…` prints the times of all starts in nanoseconds and the total
time as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

REST_S = 0.0005
"""The idle time of a sandbox between two commands of a caller outside, approximately."""


def run(seconds: float, command: list[str], rest_s: float = 0) -> tuple[list[int], int]:
    """Run commands one after the other with `subprocess.run`. The first command and the rests do not count."""
    subprocess.run(command, check=True)
    times: list[int] = []
    begin = time.perf_counter_ns()
    while not times or time.perf_counter_ns() - begin < seconds * 1e9:
        start = time.perf_counter_ns()
        subprocess.run(command, check=True)
        times.append(time.perf_counter_ns() - start)
        if rest_s:
            time.sleep(rest_s)
    return times, sum(times) if rest_s else time.perf_counter_ns() - begin


async def run_asyncio(seconds: float, at_once: int, command: list[str]) -> tuple[list[int], int]:
    """Keep `at_once` asyncio subprocesses running. The first one does not count."""
    await run_command(command)
    times: list[int] = []
    begin = time.perf_counter_ns()

    async def repeat() -> None:
        while True:
            start = time.perf_counter_ns()
            await run_command(command)
            end = time.perf_counter_ns()
            times.append(end - start)
            if end - begin >= seconds * 1e9:
                return

    await asyncio.gather(*(repeat() for _ in range(at_once)))
    return times, time.perf_counter_ns() - begin


async def run_command(command: list[str]) -> None:
    """Start one subprocess, and wait for its output and its end."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")


def main() -> None:
    """Measure and print."""
    way, seconds, at_once, command = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    if way == "asyncio":
        times, elapsed = asyncio.run(run_asyncio(seconds, at_once, command))
    else:
        times, elapsed = run(seconds, command, REST_S if way == "rested" else 0)
    print(json.dumps({"times_ns": times, "elapsed_ns": elapsed}))


if __name__ == "__main__":
    main()
