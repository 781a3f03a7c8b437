"""Fires attacks that use something up, and measures the neighbour's calls meanwhile."""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import replace

import anyio

from hermes_exec import Process
from hermes_exec.errors import ExecError
from tests.attack.arena import DIRECTORY, Arena
from tests.attack.confined import unconfined
from tests.attack.fire import mended, own_trouble
from tests.attack.model import Against, Attack, Outcome

END_S = 60.0
FEWEST = 5
MUCH = 1 << 20


async def exhaust(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Prove that the slot is confined, use it up, and see who suffers."""
    if why := await unconfined(field, attack.proof):
        return Outcome("not given", f"not fired: {why}")
    trouble: list[str] = []
    quiet = await latencies(field, trouble)
    lacked = await neighbour_lacks(field)
    process = await start(field, attack)
    trouble += await neighbour_lacks(field) - lacked
    busy = await latencies(field, trouble)
    if attack.program == "resources.kernel_limits":  # it holds what it has until then
        with contextlib.suppress(OSError, ExecError):
            await field.attacker.files.write_text("looked", "")
    ended = await end_of(process, END_S if attack.read else 0)
    own = await own_trouble(field)
    quiet += await latencies(field, trouble)
    trouble.append(await mended(field))
    outcome = judge(field, attack, ended, "; ".join(filter(None, trouble)), own)
    return replace(outcome, slower=p95(busy) / p95(quiet))


def judge(field: Arena, attack: Attack, ended: str, harm: str, own: str) -> Outcome:
    """Contained where the tenant was stopped and nobody else suffered."""
    if harm:
        return Outcome("not given", harm)
    if attack.limit and not enforced(field, attack.limit):
        return Outcome("not given", f"{attack.limit} is not enforced")
    if "unlimited:" in ended:
        return Outcome("not given", ended)
    return Outcome("contained", f"{own} {ended}"[-200:])


def enforced(field: Arena, limit: str) -> bool:
    """Whether the attacker's slot says that a limit holds."""
    return field.attacker.isolation.limits.get(limit, "not enforced") != "not enforced"


async def start(field: Arena, attack: Attack, **more: int) -> Process:
    """Start the attack, and return when it says that it is at it."""
    file, _, function = attack.program.partition(".")
    target = json.dumps({"seconds": field.seconds, **more})
    argv = ["python3", "-B", f"{field.attacker.workspace}/{DIRECTORY}/{file}.py", function, target]
    process = await field.attacker.spawn(argv)
    with anyio.fail_after(END_S):
        said = b""
        while b"ready" not in said and len(said) < MUCH:  # of much output the first line may be lost to a slow reader
            said += await process.stdout.receive()
    if attack.read:
        # What nobody reads is kept up to a limit; a stream that is open and not read makes the process wait.
        await process.stdout.aclose()
    return process


async def end_of(process: Process, patience_s: float) -> str:
    """What it said in the end, or how it ended; it is killed when it does not end."""
    try:
        try:
            result = await process.wait(patience_s)
        except TimeoutError:
            await process.kill()
            return "limit: it had to be ended"
        if result.oom_killed or result.signal is not None:
            return f"limit: ended by signal {result.signal}" + (", out of memory" if result.oom_killed else "")
        kept, _ = await process.output(0)
    except ExecError as error:
        return f"limit: {type(error).__name__}"
    return kept.decode(errors="replace")[-200:]


async def latencies(field: Arena, trouble: list[str]) -> list[float]:
    """How long the neighbour's calls take that do nothing, in seconds; one that fails is trouble."""
    taken: list[float] = []
    end = time.monotonic() + field.seconds * 0.75
    while time.monotonic() < end or len(taken) < FEWEST:
        begin = time.perf_counter()
        try:
            result = await field.slot.run(["true"], timeout_s=60)
        except ExecError as error:
            trouble.append(f"a neighbour's call: {type(error).__name__}: {error}")
        else:
            if result.exit_code != 0:
                trouble.append(f"a neighbour's call ended with {result.exit_code}: {result.stderr}")
        taken.append(time.perf_counter() - begin)
    return taken


async def neighbour_lacks(field: Arena) -> set[str]:
    """What the neighbour cannot have of what the kernel counts by user or by sandbox."""
    told = (await field.run("resources.has_its_own", {}, slot=field.slot)).stdout
    return {f"neighbour: {line.removeprefix('lacks: ')}" for line in told.splitlines() if line.startswith("lacks: ")}


def p95(taken: list[float]) -> float:
    """The time that all but one call of twenty stay below."""
    return sorted(taken)[math.ceil(0.95 * len(taken)) - 1]
