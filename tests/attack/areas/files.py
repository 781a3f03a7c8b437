"""Attacks on files."""

from __future__ import annotations

from tests.attack.model import Attack

FILES = (
    Attack(
        "by path",
        "files",
        "opens the victim's files by each of their paths, in the slot and on the host",
        "files.by_path",
        ("neighbour", "host"),
    ),
    Attack(
        "list", "files", "lists the directories that hold the victim's files", "files.by_listing", ("neighbour", "host")
    ),
    Attack("search", "files", "walks every visible directory", "files.by_search", ("neighbour", "host")),
    Attack(
        "change",
        "files",
        "overwrites, truncates, renames and removes files, and adds files beside them",
        "files.change",
        ("neighbour", "host"),
    ),
    Attack(
        "`/proc/*/root`",
        "files",
        "follows the root and working directory of other processes",
        "files.by_root",
        ("neighbour", "host"),
    ),
    Attack(
        "`/proc/*/fd`",
        "files",
        "opens the open files of other processes, one of them removed",
        "files.by_descriptor",
        ("neighbour", "host", "runner"),
    ),
    Attack(
        "hard links",
        "files",
        "creates hard links to the victim's files and reads the links",
        "files.by_hard_link",
        ("neighbour", "host"),
    ),
    Attack(
        "bind mounts",
        "files",
        "mounts the victim's directories, also in new mount and user namespaces",
        "files.by_bind_mount",
        ("neighbour", "host"),
    ),
    Attack(
        "uncovering",
        "files",
        "unmounts everything to uncover the files below",
        "files.by_uncovering",
        ("neighbour", "host"),
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
        "looks for open descriptors inherited from the runner",
        "files.by_inherited_descriptor",
        ("runner",),
        succeeds_alone=False,
    ),
    Attack(
        "devices",
        "files",
        "opens disks, memory and all other devices, by existing nodes and by new ones",
        "files.devices",
        ("host",),
        succeeds_alone=False,
    ),
    Attack(
        "system programs",
        "files",
        "writes to programs, libraries and settings that others use",
        "files.system_files",
        ("host",),
        own_sandbox=True,
        succeeds_alone=False,
    ),
    Attack(
        "the runner's program",
        "files",
        "opens the runner's executable for writing through `/proc/*/exe`",
        "files.runner_program",
        ("runner",),
        succeeds_alone=False,
    ),
)
