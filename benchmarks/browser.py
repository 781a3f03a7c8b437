"""The browser tools in a slot on this host, in turn with Playwright's own client and the same Chromium; and the cost of
a call from code of execute_code.

The benchmark runs in its own driver, `python -m benchmarks.browser beside`, like the benchmarks of agents.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.agent import Figures, run_drivers
from benchmarks.measurements import Measurements
from benchmarks.memory import children, memory_kb
from benchmarks.options import Options
from hermes_exec import SandboxPool, Slot
from hermes_exec.tools import Toolbox, ToolOptions, tool
from hermes_exec.tools.browser.chromium import PROGRAMS
from hermes_exec.tools.browser.slot_browser import browser_of_slot

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Playwright

LAUNCHES, CALLS, CALLBACKS = 7, 300, 300
FRAME_S = 1 / 60
BUTTONS = "".join(f"<button>button {number}</button>" for number in range(300))
PAGE = f"data:text/html,<title>Buttons</title>{BUTTONS}"
BUSY = """() => { for (let i = 0; i < 20000; i++) document.body.append(document.createElement('button')); }"""
LAUNCH, ACTION, SNAPSHOT = "launch, with a first page", "a click", "a snapshot of 300 buttons"
CLIENT_CLICK = "a click by its client"
CALLBACK = "a call that code makes, p50"
IDLE, WORKING = "memory (PSS) with an empty page", "memory (PSS) with a page of 20,000 elements"
HOST = "Playwright on the host"
Work = Callable[[], Awaitable[object]]


async def measure(_: Options) -> Measurements:
    """Run the driver."""
    return await run_drivers("browser", __name__, {"beside": 300.0})


@tool
def nothing() -> dict[str, object]:
    """Do nothing."""
    return {}


async def call_tool(toolbox: Toolbox, name: str, **arguments: object) -> dict[str, Any]:
    """Call a tool that must succeed, and return its data."""
    result = await toolbox.call(name, arguments)
    if not result.ok:
        raise RuntimeError(result.content)
    return result.data


async def time_ms(work: Work) -> float:
    """Return the duration of an action in ms."""
    begin = time.perf_counter()
    await work()
    return (time.perf_counter() - begin) * 1000


@asynccontextmanager
async def open_host_browser(playwright: Playwright) -> AsyncIterator[tuple[Browser, Page]]:
    """Yield Playwright's own browser on this host."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    try:
        yield browser, await browser.new_page()
    finally:
        await browser.close()


async def time_launches(slot: Slot, playwright: Playwright) -> dict[str, list[float]]:
    """Launch both browsers repeatedly."""
    times_ms: dict[str, list[float]] = {"ours": [], "host": []}
    for _ in range(LAUNCHES):
        async with Toolbox(slot, ["browser"], tools=["browser_close"]) as toolbox:
            times_ms["ours"].append(await time_ms(lambda: call_tool(toolbox, "browser_navigate", url=PAGE)))
            await call_tool(toolbox, "browser_close")
        begin = time.perf_counter()
        async with open_host_browser(playwright) as (_, page):
            await page.goto(PAGE)
            await page.aria_snapshot(mode="ai")
            times_ms["host"].append((time.perf_counter() - begin) * 1000)
    return times_ms


async def time_in_turn(**works: Work) -> dict[str, list[float]]:
    """Return the times of calls in turn, each at a random time within a frame of its page. Otherwise one contender
    would always just miss the next frame, and the other would not.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(CALLS):
        for name, work in works.items():
            await asyncio.sleep(random.uniform(0, FRAME_S))
            times_ms[name].append(await time_ms(work))
    return times_ms


def memory_mb(mark: str) -> float:
    """Return the memory of a browser with all its processes; `mark` is in the command line of the first one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if mark in line and "--type=" not in line and "chrom" in line.partition("\0")[0]:
                family = [int(entry.name)]
                for pid in family:
                    family += children(pid)
                return sum(memory_kb(pid, "Pss") for pid in family) / 1024
    raise RuntimeError(f"no browser with {mark} in its command line")


async def measure_browser() -> Figures:
    """Measure all figures of the browser."""
    from playwright.async_api import async_playwright

    figures: Figures = {}

    def compare(name: str, times_ms: dict[str, list[float]], unit: str) -> None:
        ours, theirs = (statistics.median(times_ms[side]) for side in ("ours", "host"))
        figures[name], figures[f"{name}, {HOST}"] = (ours, unit), (theirs, unit)
        figures[f"{name}, ratio to the host"] = (ours / theirs, "×")
        if unit == "ms":
            figures[f"{name}, difference from the host"] = (ours - theirs, "ms")

    async with async_playwright() as playwright, SandboxPool("local", network=False) as pool, pool.slot() as slot:
        compare(LAUNCH, await time_launches(slot, playwright), "ms")
        async with (
            Toolbox(slot, ["browser"]) as toolbox,
            open_host_browser(playwright) as (_, page),
        ):
            await call_tool(toolbox, "browser_navigate", url="data:text/html,<title>Empty</title>")
            await page.goto("data:text/html,<title>Empty</title>")
            marks = {"ours": "hermes-browser-", "host": "playwright_chromiumdev_profile"}
            compare(IDLE, {side: [memory_mb(mark)] for side, mark in marks.items()}, "MiB")
            first_page = await call_tool(toolbox, "browser_navigate", url=PAGE)
            await page.goto(PAGE)
            ref = next(line for line in first_page["snapshot"].splitlines() if "button 7" in line).partition("[ref=")[2]
            button = page.get_by_role("button", name="button 7", exact=True)
            running = browser_of_slot(slot).running
            assert running is not None
            # First Playwright's client alone, through the slot's pipe and on the host. Then the tool, with more trips.
            piped_button = running.tabs.page.get_by_role("button", name="button 7", exact=True)
            compare(CLIENT_CLICK, await time_in_turn(ours=piped_button.click, host=button.click), "ms")
            compare(
                ACTION,
                await time_in_turn(
                    ours=lambda: call_tool(toolbox, "browser_click", ref=ref.partition("]")[0]), host=button.click
                ),
                "ms",
            )
            snapshots = await time_in_turn(
                ours=lambda: call_tool(toolbox, "browser_snapshot"), host=lambda: page.aria_snapshot(mode="ai")
            )
            compare(SNAPSHOT, snapshots, "ms")
            await call_tool(toolbox, "browser_console", expression=BUSY)
            await page.evaluate(BUSY)
            compare(WORKING, {side: [memory_mb(mark)] for side, mark in marks.items()}, "MiB")
            code = (
                "import statistics, time\nfrom hermes_tools import nothing\nspent = []\n"
                f"for _ in range({CALLBACKS}):\n    begin = time.perf_counter()\n    nothing()\n"
                "    spent.append(time.perf_counter() - begin)\nprint(statistics.median(spent) * 1000)"
            )
            toolbox_of_code = Toolbox(
                slot, ["code_execution"], tools=[nothing], options=ToolOptions(code_max_calls=CALLBACKS)
            )
            figures[CALLBACK] = (float((await call_tool(toolbox_of_code, "execute_code", code=code))["output"]), "ms")
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"beside": measure_browser}[sys.argv[1]]())))
