"""The rows of the table, and the table in the documentation: written by `python -m tests.chaos --write`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.chaos import containers, drivers, killed, room
from tests.chaos.observations import Seen

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "failures.md"
BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
HEAD = ("failure", "the running call", "after", "the next call on the slot", "the pool", "leftovers")
SHORT, LONG = 3, 50
"""How many drivers are killed in the tests, and for the table."""
ELSEWHERE = {
    "ssh": "`ssh`",
    "singularity": "Apptainer",
    "nomad": "Nomad",
    "modal": "Modal's client and loopback server",
}


class Row(NamedTuple):
    """One disaster; `limit_s` is how long the call under way may take from its beginning."""

    what: str
    run: Callable[[], Awaitable[Seen]]
    limit_s: float
    engine: str = "docker"


def rows(kills: int) -> dict[str, Row]:
    """All rows by a short name; so many drivers are killed on each backend."""
    seeds = range(kills)
    return {
        "restart": Row("dockerd is restarted and takes its containers along", containers.restarted, 30),
        "live-restore": Row("dockerd is restarted with `live-restore`", containers.restarted_with_live_restore, 60),
        "killed": Row("the container is killed", containers.killed, 30),
        "removed": Row("the container is removed", containers.removed, 30),
        "paused": Row("the container is paused for 20 s", containers.paused, 60),
        "paused-for-good": Row("the container is paused and stays so (lease 2 s)", containers.paused_for_good, 40),
        "memory-slot": Row("a slot takes more memory than its limit (local)", room.memory_of_a_slot, 60, "local"),
        "memory-sandbox": Row("the memory of a sandbox of two slots is full for good", room.memory_of_a_sandbox, 60),
        "disk-local": Row(
            "the disk under the slots of a local sandbox is full", room.disk_of_local_sandboxes, 60, "local"
        ),
        "disk-docker": Row("the disk under the slots of a container is full", room.disk_of_a_sandbox, 60),
        "stopped": Row(
            "the driver is stopped (SIGSTOP) past its lease (2 s), and goes on", drivers.stopped_past_its_lease, 30
        ),
        "blocked": Row("the driver's event loop is blocked for two leases (2 s each)", drivers.blocked, 60),
        "reap-orphans": Row(
            "another driver is killed, a third one reaps orphans", drivers.beside_one_that_reaps_orphans, 60
        ),
        "reap-run": Row("somebody reaps the sandboxes of this run", drivers.beside_one_that_reaps_its_run, 60),
        "driver-killed-local": Row(
            "the driver of 64 local slots is killed at a random moment", partial(killed.local, seeds), 60, "local"
        ),
        "driver-killed-docker": Row(
            "the driver of 64 slots in 4 containers is killed at a random moment (lease 5 s)",
            partial(killed.docker, seeds),
            60,
        ),
        **{
            f"driver-killed-{backend}": Row(
                f"the driver of 64 slots in 4 sandboxes of {what} is killed at a random moment (lease 5 s)",
                partial(killed.elsewhere, backend, seeds),
                60,
                backend,
            )
            for backend, what in ELSEWHERE.items()
        },
    }


def line(row: Row, seen: Seen) -> str:
    """A row as text."""
    cells = (row.what, seen.call, f"{seen.seconds:.1f} s", seen.then or "–", seen.pool, seen.left)
    return f"| {' | '.join(cells)} |"


def meaning(text: str) -> list[str]:
    """The cells of a row without its seconds, which differ from one machine to another."""
    cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
    return cells[:2] + cells[3:]


def written() -> dict[str, str]:
    """The rows that stand in the documentation, by what happens."""
    between = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    return {meaning(text)[0]: text for text in between.strip().splitlines()[2:]}


def write(lines: list[str]) -> None:
    """Put the table into the documentation."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    head = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    PAGE.write_text("\n".join([before + BEGIN, "", *head, *lines, "", END + after]), "utf-8")
