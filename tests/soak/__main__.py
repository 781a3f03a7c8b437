"""`python -m tests.soak --minutes 30`: mixed work on many slots, and a table of what was held at both ends of it.

The exit code is 1 when something has grown, is left, or was answered wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.faults.workload import nap
from tests.soak import load
from tests.soak.backends import DEFAULT, SANDBOXES, Backend, start
from tests.soak.gauges import LABEL, containers, docker
from tests.soak.verdict import LATENCY_GROWTH, latencies, rows
from tests.support.outside import marked

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 30.0
PAUSE_S = 2.5
PATIENCE_S = 30.0
MEASURED_CALLS = 100_000


def main() -> int:
    """Work, look, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--slots", type=int, default=128, help="divided among the backends")
    parser.add_argument("--backend", action="append", choices=SANDBOXES, help=f"default: {' and '.join(DEFAULT)}")
    parser.add_argument("--hostile", type=int, default=0, help="further slots whose tenants use up what they can")
    parser.add_argument("--pause-s", type=float, default=PAUSE_S, help="rest of a worker between two things to do")
    parser.add_argument(
        "--any-latency", action="store_true", help="others use this machine: nothing is judged by how long it took"
    )
    parser.add_argument("--html", type=Path, help="write the tables here, too")
    asked = parser.parse_args()
    console = Console(stderr=True, record=True, width=100)
    run_id, seed = f"soak-{secrets.token_hex(4)}", secrets.randbelow(10**6)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as engines:
        backends = [engines.enter_context(start(name, run_id, scratch)) for name in asked.backend or DEFAULT]
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        os.chdir(scratch)
        work = load.Progress(asked.slots, asked.hostile)
        samples = run(backends, run_id, seed, asked.minutes * 60, asked.pause_s, work, console)
        wrong = [*work.wrong, *left(backends, run_id, seed, Path(scratch), work.slots)]
        os.chdir(ROOT)
    wrong += report(console, work, samples, asked.minutes, judge_latency=not asked.any_latency)
    for problem in wrong:
        console.print(f"[red]wrong[/]: {problem}", markup=True, soft_wrap=True)
    if asked.html:
        console.save_html(str(asked.html))
    return 1 if wrong else 0


def run(
    backends: list[Backend],
    run_id: str,
    seed: int,
    seconds: float,
    pause_s: float,
    work: load.Progress,
    console: Console,
) -> list[dict[str, float]]:
    """The work, looked at by another process; what that saw."""
    command = [sys.executable, "-m", "tests.soak.gauges", str(os.getpid()), run_id, os.getcwd()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines: list[str] = []
    watcher: list[subprocess.Popen[str]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("slots are opened", total=seconds)

        def begun() -> None:
            watcher.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
            threading.Thread(target=lambda: lines.extend(watcher[0].stdout or ()), daemon=True).start()

        async def everything() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(show)
                await load.work(backends, run_id, seed, seconds, pause_s, work, begun)
                tasks.cancel_scope.cancel()

        async def show() -> None:
            while True:
                await anyio.sleep(1.0)
                if watcher:
                    progress.update(task, advance=1, description=f"{work.calls:,} calls")
                if watcher and work.probes and work.probes[-1][0] > seconds - 6 and watcher[0].poll() is None:
                    watcher[0].send_signal(signal.SIGTERM)  # the end is no part of the work

        try:
            asyncio.run(everything())
        finally:
            for process in watcher:
                process.kill()
                process.wait()
    return [json.loads(line) for line in lines if line.endswith("\n")]


def left(backends: list[Backend], run_id: str, seed: int, scratch: Path, slots: int) -> list[str]:
    """What is left when all pools are closed, and after a while."""
    deadline = time.monotonic() + PATIENCE_S
    naps = [nap(seed, number) for number in range(slots)]
    while found := find_left(backends, run_id, naps, scratch):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return found


def find_left(backends: list[Backend], run_id: str, naps: list[str], scratch: Path) -> list[str]:
    """What is there now of what is not to be there."""
    client = docker()
    found = [f"a process sleeps for {word}" for word in naps if marked(word)]
    found += [f"container {container[:12]} is left" for container in containers(client, run_id, ended=True)]
    if client is not None:
        volumes = client.api.volumes(filters={"label": f"{LABEL}={run_id}"})["Volumes"] or ()
        found += [f"volume {volume['Name']} is left" for volume in volumes]
    found += [f"{path} is left" for path in scratch.rglob("*/*") if path.suffix != ".pace"]
    return found + [problem for backend in backends for problem in backend.find_left()]


def report(
    console: Console, work: load.Progress, samples: list[dict[str, float]], minutes: float, *, judge_latency: bool
) -> list[str]:
    """Draw the tables; what is not as it should be."""
    wrong = []
    table = Table(title=f"{work.calls:,} calls in {minutes:g} minutes on {work.slots} slots")
    for column in ("held", "at the beginning", "at the end", "may be"):
        table.add_column(column, justify="left" if column == "held" else "right")
    for row in rows(samples, work.hostile):
        color = "green" if row.flat else "red"
        table.add_row(row.name, f"{row.first:,.0f}", f"[{color}]{row.last:,.0f}[/]", f"{row.limit:,.0f}")
        if not row.flat:
            wrong.append(f"{row.name} grew from {row.first:,.0f} to {row.last:,.0f}")
    first, last = latencies(work.probes)
    table.add_row("p99 of a no-op, ms", f"{first:,.1f}", f"{last:,.1f}", f"{first * LATENCY_GROWTH:,.1f}")
    if judge_latency:
        wrong += work.unknown
        if last > first * LATENCY_GROWTH:
            wrong.append(f"the p99 of a no-op rose from {first:.1f} to {last:.1f} ms")
    console.print(table)
    for what, count in work.attacks.most_common():
        console.print(f"hostile: {count:,} times {what}", markup=False, soft_wrap=True)
    if minutes >= MINUTES and work.calls < MEASURED_CALLS:
        wrong.append(f"only {work.calls:,} calls were made: lower --pause-s")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
