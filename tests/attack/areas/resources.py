"""What can be used up. Nothing is fired from a slot that was not shown to be confined for it."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from hermes_exec.testing.conformance.disks import small_disk
from tests.attack.areas.storms import MUCH
from tests.attack.arena import Arena, arena
from tests.attack.exhaust import exhaust
from tests.attack.model import Against, Attack, Outcome


async def fill(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Fill a small file system on which both slots are."""
    if field.level.id != "namespaces":
        return Outcome("not given", "not fired: the slot has no file system of its own here")
    with tempfile.TemporaryDirectory(prefix="attack-disk-") as directory:
        async with small_disk(Path(directory)) as disk, arena(field.level, None, str, base_dir=str(disk)) as small:
            async with small.an_attacker():
                told = await small.run(attack.program, {"seconds": 0})
                try:
                    await small.slot.files.write_bytes("after", bytes(1 << 16))
                except OSError as error:
                    return Outcome("not given", f"the neighbour cannot write: {error}")
                finally:
                    harm = await small.harm()
            return Outcome("not given" if harm else "contained", harm or told.stdout)


USED_UP = partial(Attack, area="resources", against=("neighbour",), by=exhaust, rounds=3, succeeds_alone=False)
RESOURCES = (
    USED_UP(
        "memory",
        does="fills 768 MiB with a limit of 192 MiB",
        program="resources.memory",
        proof=("processes",),
        limit="memory_mb",
        why="sandboxes of an ordinary user have no limits where Apptainer cannot make cgroups for them.",
    ),
    USED_UP(
        "`/dev/shm`",
        does="fills 768 MiB of it",
        program="resources.shared_memory",
        proof=("processes",),
        why="at `uid` it is the sandbox's, 64 MiB for all slots; in Apptainer the sandbox's memory is its only bound.",
    ),
    USED_UP(
        "fork bomb",
        does="forks without end",
        program="resources.fork_bomb",
        proof=("processes", "pids"),
        limit="pids",
        why="no limit of processes holds there (for Apptainer, as memory).",
    ),
    USED_UP(
        "threads",
        does="starts 4,000",
        program="resources.threads",
        proof=("processes",),
        limit="pids",
        why="as memory.",
    ),
    USED_UP("descriptors", does="opens 30,000 files", program="resources.descriptors", proof=("processes",)),
    USED_UP(
        "CPU",
        does="keeps 8 processes busy",
        program="resources.burn",
        limit="cpus",
        why="slots have a share of the processors only if they have their own cgroups; a `cpus` limit "
        "of the sandbox stops all "
        "its slots when one slot has used it up.",
    ),
    USED_UP("output", does="writes as fast as it can", program="resources.flood"),
    USED_UP(
        "a client that does not read",
        does="the same, while the driver holds the stream open and reads nothing",
        program="resources.flood",
        read=False,
    ),
    *MUCH,
    USED_UP(
        "directories", does="creates one of 20,000 entries and one 3,000 levels deep", program="resources.many_entries"
    ),
    USED_UP(
        "counts by user",
        does="uses up counters that the kernel keeps by user: descriptors in flight, inotify, queues, pipes",
        program="resources.kernel_limits",
        why="sandboxes whose user is root on one host, and slots of one ordinary user, share these counts: a "
        "neighbour's programs may be refused the passing of descriptors, beside a whole sandbox also inotify and "
        "queues. Its calls go on in sandboxes; in slots of one ordinary user they go on where `open_files` is set, "
        "and fail meanwhile where it "
        "is not.",
    ),
    Attack(
        "disk",
        "resources",
        "fills the file system of the slots",
        "resources.disk",
        by=fill,
        why="without `slot_limits.disk_mb` slots share the file system of their sandbox's directory; run on `local` as "
        "root only, where a small one can be mounted.",
        succeeds_alone=False,
    ),
    Attack(
        "inodes",
        "resources",
        "uses up the inodes of the file system of the slots",
        "resources.inodes",
        by=fill,
        why="without `slot_limits.disk_mb` slots share the file system of their sandbox's directory; run on `local` as "
        "root only, where a small one can be mounted.",
        succeeds_alone=False,
    ),
)
