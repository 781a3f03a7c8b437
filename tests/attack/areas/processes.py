"""Attacks on processes."""

from __future__ import annotations

from tests.attack.model import Attack

PROCESSES = (
    Attack(
        "signals",
        "processes",
        "KILL and STOP by `kill`, `killpg`, `tgkill` and pidfd, with every number that it may have",
        "processes.signals",
        ("neighbour", "host"),
    ),
    Attack(
        "signals by descriptor",
        "processes",
        "has the kernel send KILL as the news that a pipe is ready",
        "processes.signals_by_descriptor",
        ("neighbour", "host"),
    ),
    Attack("`ptrace`", "processes", "attaches and reads", "processes.trace", ("neighbour", "host", "runner")),
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
        why="at `uid` slots share the box's process table: keep secrets out of arguments, they belong in `secrets`.",
    ),
    Attack(
        "`pidfd_getfd`",
        "processes",
        "takes open files out of a process",
        "processes.steal_descriptor",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "priorities",
        "processes",
        "lowers priority, class, processors, limits and `oom_score_adj` of others",
        "processes.slow_down",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "own priority",
        "processes",
        "takes real-time classes, nice -20 and exemption from the end when memory runs out",
        "processes.speed_up",
        ("host",),
        succeeds_alone=False,
    ),
)
