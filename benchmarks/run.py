"""Run the parts of the benchmark one after the other: `python -m benchmarks.run [--only PART]…`.

A whole run writes RESULTS.md in this directory. A run of some parts writes to .cache/bench.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import (
    acquire,
    agent,
    browser,
    calls,
    curves,
    engines,
    environments,
    fork,
    memory,
    model_client,
    overhead,
    parsers,
    sandboxes,
    scale,
    start,
    transfer,
)
from benchmarks.machine_load import LoadSample, measure_load
from benchmarks.measurements import Measurements
from benchmarks.options import Options
from benchmarks.report import write_report

PARTS: dict[str, Callable[[Options], Awaitable[Measurements]]] = {
    "start": start.measure,
    "sandboxes": sandboxes.measure,
    "acquire": acquire.measure,
    "fork": fork.measure,
    "memory": memory.measure,
    "calls": calls.measure,
    "added": overhead.measure,
    "transfer": transfer.measure,
    "curves": curves.measure,
    "engines": engines.measure,
    "parsers": parsers.measure,
    "agent": agent.measure,
    "model client": model_client.measure,
    "browser": browser.measure,
    "environments": environments.measure,
    "scale": scale.measure,
}


async def measure(names: list[str], options: Options) -> tuple[Measurements, list[LoadSample]]:
    """Run these parts. A part that fails is reported as left out, and the others continue."""
    whole, loads = Measurements(), []
    for name in names:
        loads.append(measure_load(name))
        begin = time.perf_counter()
        try:
            whole.join(await PARTS[name](options))
        except Exception as error:  # noqa: BLE001 - reported here and in the report, and the run fails
            traceback.print_exc()
            whole.leave_out(f"part {name} failed", repr(error))
        print(f"\r\033[K{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return whole, loads


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Options()
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=default.rounds)
    parser.add_argument("--slice-s", type=float, default=default.slice_s, help="time of one contender in one round")
    parser.add_argument("--slots", type=int, default=default.slots, help="live slots of the part scale")
    parser.add_argument("--sandboxes", type=int, default=default.sandboxes, help="containers of the part sandboxes")
    parser.add_argument(
        "--megabytes", type=int, default=default.megabytes, help="size of the file of the part transfer"
    )
    parser.add_argument(
        "--state-megabytes", type=int, default=default.state_megabytes, help="size of the large state of the part fork"
    )
    parser.add_argument("--out", type=Path, help="directory to write to")
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent
    out = arguments.out or (here.parent / ".cache" / "bench" if arguments.only else here)
    sizes = (arguments.slots, arguments.sandboxes, arguments.megabytes, arguments.state_megabytes)
    options = Options(arguments.rounds, arguments.slice_s, *sizes)
    # The part curves runs 512 commands at once, each with its pipes.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    begin = time.perf_counter()
    names = [name for name in PARTS if not arguments.only or name in arguments.only]
    measurements, loads = asyncio.run(measure(names, options))
    print(write_report(out, measurements, loads, time.perf_counter() - begin))
    print(out / "RESULTS.md")
    return 1 if any(line.startswith("part ") for line in measurements.left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
