"""Attempts to gain privileges."""

from __future__ import annotations

from tests.attack.model import Attack

PRIVILEGE = (
    Attack(
        "set-user-id programs",
        "privilege",
        "runs root's programs that have the bit or all capabilities",
        "privilege.setuid_program",
        ("own",),
        succeeds_alone=False,
    ),
    Attack(
        "own set-user-id programs",
        "privilege",
        "creates such programs",
        "privilege.own_setuid_program",
        ("own",),
        succeeds_alone=False,
    ),
    Attack(
        "uid 0",
        "privilege",
        "sets its ids and groups to root's",
        "privilege.become_root",
        ("own",),
        own_sandbox=True,
        succeeds_alone=False,
    ),
    Attack(
        "administrator's calls",
        "privilege",
        "host name, clock, mounts, `chroot`, modules, BPF, counters, I/O ports, accounting, higher limits",
        "privilege.privileges",
        ("host",),
        own_sandbox=True,
        succeeds_alone=False,
    ),
    Attack(
        "the kernel's log",
        "privilege",
        "reads the kernel's log",
        "privilege.kernel_log",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "kernel settings",
        "privilege",
        "opens kernel settings in `/proc`, `/sys` and `/dev` for writing",
        "privilege.kernel_settings",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "control groups",
        "privilege",
        "leaves its cgroup or raises the limits of it",
        "privilege.control_groups",
        ("own",),
        succeeds_alone=False,
    ),
    Attack(
        "user namespaces",
        "privilege",
        "becomes root in a new user namespace and uses these rights outside of it",
        "privilege.namespaces",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "other namespaces",
        "privilege",
        "enters namespaces of other processes",
        "privilege.join_namespaces",
        ("neighbour", "host"),
        succeeds_alone=False,
    ),
)
