"""Attacks on processes."""

from __future__ import annotations

import secrets

from hermes_exec.testing.conformance import outside
from tests.attack.arena import Arena
from tests.attack.model import Against, Attack, Outcome


async def outlive(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Leave processes behind and release the slot; the host counts what is left."""
    mark = secrets.token_hex(6)
    await field.run("processes.outlive", {"mark": mark})
    started = await outside.wait_for_processes(mark, 4)
    await field.attacker.reset()
    left = await outside.wait_until_gone(mark, 10)
    if left or len(started) < 4:
        return Outcome("not given", f"{len(left)} of {len(started)} processes are left")
    return Outcome("prevented", f"{len(started)} processes were ended")


PROCESSES = (
    Attack(
        "signals",
        "processes",
        "sends KILL and STOP by `kill`, `killpg`, `tgkill` and pidfd to every possible pid",
        "processes.signals",
        ("neighbour", "host"),
    ),
    Attack(
        "signals by descriptor",
        "processes",
        "makes the kernel send KILL as the signal for a ready pipe",
        "processes.signals_by_descriptor",
        ("neighbour", "host"),
    ),
    Attack(
        "`ptrace`",
        "processes",
        "attaches to the process and reads its memory",
        "processes.trace",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "`process_vm_readv`",
        "processes",
        "reads memory",
        "processes.read_memory_by_call",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "`/proc/*/mem`", "processes", "reads memory", "processes.read_memory_by_file", ("neighbour", "host", "runner")
    ),
    Attack(
        "environments",
        "processes",
        "reads `/proc/*/environ`",
        "processes.read_environment",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "command lines",
        "processes",
        "reads `/proc/*/cmdline` of all processes",
        "processes.read_command_line",
        ("neighbour", "host"),
        why="at `uid` slots share the sandbox's process table: keep secrets out of arguments (`secrets`).",
    ),
    Attack(
        "`pidfd_getfd`",
        "processes",
        "copies open files out of a process",
        "processes.steal_descriptor",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "priorities",
        "processes",
        "lowers the priority, class, processors, limits and `oom_score_adj` of other processes",
        "processes.slow_down",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "own priority",
        "processes",
        "sets real-time classes, nice -20 and exemption from the OOM killer",
        "processes.speed_up",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "signals to all",
        "processes",
        "sends TERM, STOP and KILL to every visible process",
        "processes.signals_to_all",
        ("runner",),
        proof=("processes",),
        succeeds_alone=False,
    ),
    Attack(
        "`kill -9 -1`",
        "processes",
        "kills every process that it is allowed to signal",
        "processes.kill_everybody",
        ("runner",),
        proof=("processes",),
        succeeds_alone=False,
    ),
    Attack(
        "staying",
        "processes",
        "leaves daemons, stopped processes, some that ignore signals and some that always fork, for the next tenant",
        against=("host",),
        by=outlive,
        succeeds_alone=False,
    ),
)
