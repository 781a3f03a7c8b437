"""Attacks on files."""

from __future__ import annotations

from tests.attack.model import Attack

FILES = (
    Attack(
        "by path",
        "files",
        "opens its files by every name that they have, in the slot and on the host",
        "files.by_path",
        ("neighbour", "host"),
    ),
    Attack("list", "files", "lists the directories that they are in", "files.by_listing", ("neighbour", "host")),
    Attack("search", "files", "goes through everything that can be seen", "files.by_search", ("neighbour", "host")),
    Attack(
        "change",
        "files",
        "overwrites, truncates, renames, removes, and puts files beside them",
        "files.change",
        ("neighbour", "host"),
    ),
    Attack(
        "`/proc/*/root`",
        "files",
        "goes through the root and the working directory of other processes",
        "files.by_root",
        ("neighbour", "host"),
    ),
    Attack(
        "`/proc/*/fd`",
        "files",
        "opens what other processes have open, a removed file among it",
        "files.by_descriptor",
        ("neighbour", "host", "runner"),
    ),
    Attack("hard links", "files", "links to them and reads the link", "files.by_hard_link", ("neighbour", "host")),
    Attack(
        "bind mounts",
        "files",
        "mounts their directories, also in mount and user namespaces of its own",
        "files.by_bind_mount",
        ("neighbour", "host"),
    ),
    Attack(
        "uncovering", "files", "unmounts everything, to see what is below", "files.by_uncovering", ("neighbour", "host")
    ),
    Attack(
        "handles",
        "files",
        "opens files by guessed handles",
        "files.by_handle",
        ("neighbour", "host"),
        succeeds_alone=False,
    ),
    Attack(
        "inherited descriptors",
        "files",
        "looks for descriptors that were left open in it",
        "files.by_inherited_descriptor",
        ("runner",),
        succeeds_alone=False,
    ),
    Attack(
        "devices",
        "files",
        "opens disks, memory and all other devices, by nodes that are there and by its own",
        "files.devices",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "system programs",
        "files",
        "writes to the programs, libraries and settings of the host or of the sandbox that others use",
        "files.system_files",
        ("host",),
        own_sandbox=True,
        succeeds_alone=False,
    ),
    Attack(
        "the runner's program",
        "files",
        "opens it for writing by `/proc/*/exe`",
        "files.runner_program",
        ("runner",),
        succeeds_alone=False,
    ),
)
