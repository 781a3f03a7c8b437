"""Many live slots in one driver: their cost, and the cost of a call with so many slots."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from benchmarks.calls import DOCKER, LOCAL
from benchmarks.container import ensure_image
from benchmarks.contender import ContenderMissing
from benchmarks.measurements import Curves, Figure, Measurements, Point, Sample, progress
from benchmarks.options import Options
from benchmarks.scale_driver import AT_ONCE

TIME_LIMIT_S = 240.0
ENDING_S = 60.0
LINE_BYTES = 16 << 20
MEMORY = "driver memory a slot"


@dataclass(frozen=True)
class Step:
    """The report of a driver at one number of slots."""

    slots: int
    sandboxes: int
    descriptors: int
    rss_kb: int
    times_s: list[float]
    elapsed_s: float

    def point(self) -> Point:
        """Return the point on the curve."""
        sample = Sample()
        sample.add(self.times_s, self.elapsed_s)
        return Point(self.slots, sample.p50_ms, sample.p95_ms, sample.per_second)


def more_descriptors(slots: int) -> str:
    """Return the name of a figure: the additional descriptors for this many slots, with as many sandboxes."""
    return f"additional descriptors of the driver for {slots:,} slots instead of 1"


async def measure(options: Options) -> Measurements:
    """Grow a driver of each backend, one after the other."""
    measurements = Measurements()
    curves = Curves(f"Empty commands, {AT_ONCE} at once, by the number of live slots", "live slots", "slots.svg")
    measurements.curves.append(curves)
    for name, backend in ((LOCAL, "local"), (DOCKER, "docker")):
        try:
            if backend == "docker":
                await to_thread.run_sync(ensure_image)
            steps = await run_driver(name, backend, options)
        except ContenderMissing as error:
            measurements.leave_out(f"{name}, many slots", error)
            continue
        curves.lines[name] = [step.point() for step in steps]
        measurements.figures |= {
            f"{name}: {label}": figure for label, figure in make_figures(steps[0], steps[-1]).items()
        }
    return measurements


def make_figures(least: Step, most: Step) -> dict[str, Figure]:
    """Return the cost of the slots between two steps."""
    return {
        MEMORY: Figure((most.rss_kb - least.rss_kb) / max(1, most.slots - least.slots), "KiB"),
        more_descriptors(most.slots): Figure(most.descriptors - least.descriptors, ""),
        f"all descriptors of the driver for {most.slots:,} slots in {most.sandboxes} sandboxes": Figure(
            most.descriptors, ""
        ),
        f"driver memory for {most.slots:,} slots, resident": Figure(most.rss_kb / 1024, "MiB"),
    }


async def run_driver(name: str, backend: str, options: Options) -> list[Step]:
    """Run a driver to its end, or for TIME_LIMIT_S.

    Raises:
        ContenderMissing: If the driver fails or takes too long.
    """
    command = [sys.executable, "-m", "benchmarks.scale_driver", backend, str(options.slots), str(2 * options.slice_s)]
    root = Path(__file__).resolve().parent.parent
    driver = await asyncio.create_subprocess_exec(*command, cwd=root, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES)
    assert driver.stdout is not None
    steps: list[Step] = []
    try:
        async with asyncio.timeout(TIME_LIMIT_S):
            progress(f"{name}: growing to {options.slots} slots")
            async for line in driver.stdout:
                steps.append(Step(**json.loads(line)))
                progress(f"{name}: {steps[-1].slots} of {options.slots} slots live")
            if await driver.wait() != 0:
                raise ContenderMissing(f"the driver ended with {driver.returncode}")
    except TimeoutError as error:
        raise ContenderMissing(f"the driver did not get there within {TIME_LIMIT_S:g} s") from error
    finally:
        await end_driver(driver)
    return steps


async def end_driver(driver: asyncio.subprocess.Process) -> None:
    """Interrupt a driver, so that it ends its sandboxes. If this takes too long, they end with their lease."""
    if driver.returncode is None:
        driver.send_signal(2)
        try:
            await asyncio.wait_for(driver.wait(), ENDING_S)
        except TimeoutError:
            driver.kill()
            await driver.wait()
