"""What a tenant makes large for the programs of ours that have to look at it: runner and agent stay small."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import anyio

from hermes_exec.errors import ExecError
from tests.attack.areas.storms import MOST_RUNNER_MIB
from tests.attack.arena import DIRECTORY, Arena
from tests.attack.fire import mended, own_trouble
from tests.attack.model import Against, Attack, Outcome
from tests.attack.own_programs import our_programs, peak_mib

MIB, GIB = 1 << 20, 1 << 30
PROCESSES, COMMANDS, FLOOD = 6, 3, 64 * MIB
LEVELS = 3500
ROOM_MIB = 64
"""What a runner may take besides its budget."""
CALL_S = 240.0


async def floods(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Processes that nobody reads, and commands, write more on both of their streams than files keep of a slot, with
    output limits as large as they can be.
    """
    await field.attacker.run(["true"])
    budget = field.pool.stats().runners[field.attacker.sandbox].limit_bytes
    argv = [*program(field, "resets.py"), "flood_both", json.dumps({"bytes": FLOOD})]

    async def spawned() -> None:
        process = await field.attacker.spawn(argv, output_limit_bytes=budget // 4, merge_stderr=False)
        await process.wait(CALL_S)

    async def called() -> None:
        await field.attacker.run(argv, output_limit_bytes=budget // 4, timeout_s=CALL_S)

    async def flood() -> None:
        async with anyio.create_task_group() as tasks:
            for call in (spawned,) * PROCESSES + (called,) * COMMANDS:
                tasks.start_soon(call)

    told = f"{(PROCESSES + COMMANDS) * 2 * FLOOD // MIB:,} MiB"
    return await judged(field, flood, told, budget // MIB + ROOM_MIB)


async def command_line(field: Arena, attack: Attack, against: Against) -> Outcome:
    """A process has a command line of a gibibyte, and the driver lists the slot's processes."""
    process = await field.attacker.spawn([*program(field, "forged.py"), "argv", str(GIB)])
    with anyio.fail_after(60):
        assert await process.stdout.receive() == b"forged\n"
    outcome = await judged(field, field.attacker.processes, "listed", MOST_RUNNER_MIB)
    with suppress(ExecError, ProcessLookupError):
        await process.kill()
    return outcome


async def deep_tree(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Directories are removed by the driver that lie one in another."""
    made = await field.run("resets.dig", {"levels": LEVELS})
    assert "done" in made.stdout, made.stderr
    remove = partial(field.attacker.files.remove, "top", recursive=True)
    return await judged(field, remove, "removed", MOST_RUNNER_MIB)


def program(field: Arena, name: str) -> list[str]:
    """The beginning of a command of the attacker's."""
    return ["python3", "-B", f"{field.attacker.workspace}/{DIRECTORY}/{name}"]


async def judged(field: Arena, call: Callable[[], Awaitable[object]], told: str, most_mib: int) -> Outcome:
    """Make a call of the driver, and judge by the most memory that the slot's agent and its runner ever had."""
    pids = await our_programs(field.attacker)
    begin = time.monotonic()
    try:
        await call()
    except (ExecError, ExceptionGroup) as error:
        return Outcome("not given", f"the driver's call: {error!r}")
    told = f"{told} in {time.monotonic() - begin:.1f} s, runner and agent at most {max(map(peak_mib, pids))} MiB"
    if max(map(peak_mib, pids)) > most_mib:
        return Outcome("not given", told, measured=told)
    own, harm = await own_trouble(field), await mended(field)
    return Outcome("not given" if harm else "contained", harm or own or told, measured=told)


SWELLING = (
    Attack(
        "a command line of 1 GiB",
        "resources",
        "sets one with `PR_SET_MM_MAP`, and the driver lists its processes",
        "forged.argv",
        ("runner",),
        by=command_line,
        succeeds_alone=False,
    ),
    Attack(
        "a deep tree",
        "resources",
        f"makes {LEVELS:,} directories with long names, one in another, which the driver removes",
        "resets.dig",
        ("runner",),
        by=deep_tree,
        succeeds_alone=False,
    ),
    # The last: the runner's peak stays.
    Attack(
        "floods of several processes",
        "resources",
        f"{PROCESSES} processes and {COMMANDS} commands fill both streams, with the largest output limits there are",
        "resets.flood_both",
        ("runner",),
        by=floods,
        succeeds_alone=False,
    ),
)
