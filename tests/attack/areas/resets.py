"""What a tenant, or a neighbour, does to the reset of a slot: files that it does not find, names that change, time."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from hermes_exec import Process, Slot
from hermes_exec.errors import ExecError
from tests.attack.arena import DIRECTORY, PROGRAMS, Arena
from tests.attack.fire import mended, own_trouble
from tests.attack.model import Against, Attack, Outcome

DEPTH = 40
SHARED_DIRECTORIES, OWN_DIRECTORIES = 150_000, 20_000
SHARED_ROUNDS, OWN_ROUNDS = 60, 2
"""How often names are exchanged beside a reset where slots share directories, and where they do not."""
TIMES = 5
MOST_TIMES, MOST_LATER_S = 4, 0.3
"""How much longer a reset may take beside a neighbour's directories; the load of the machine is in it."""
LEAVE = "umask 0; mkdir -p $0; cd $0; for n in one two; do mkdir $n 2>/dev/null && mkdir $n/1 $n/2 $n/3 $n/4; done; :"
KEEP = "umask 022; mkdir -p $0/one && echo $1 >$0/one/file"


async def left_deep(field: Arena, attack: Attack, against: Against) -> Outcome:
    """A holder leaves a file deep in directories of its neighbour; the next one looks for it."""
    top, secret = f"/tmp/open-{secrets.token_hex(6)}", secrets.token_hex(12)
    aim = {"place": top + "/d" * DEPTH, "secret": secret}
    await field.slot.run(["sh", "-c", "umask 0; mkdir -p $0", aim["place"]], check=True)
    try:
        left = await field.run("resets.leave", aim)
        assert f"left {secret}" in left.stdout, left.stderr
        async with next_holder(field) as slot:
            got = await field.run("resets.look", aim, slot=slot)
            assert "done" in got.stdout, got.stderr
    finally:
        await field.slot.run(["rm", "-rf", top])
    harm = await mended(field)
    if secret in got.stdout or harm:
        return Outcome("not given", harm or "the next holder reads it")
    return Outcome("prevented", got.stdout)


@asynccontextmanager
async def next_holder(field: Arena) -> AsyncIterator[Slot]:
    """The attacker's slot after a reset, or the one that there is in its place where it cannot be reset."""
    async with AsyncExitStack() as stack:
        slot = field.attacker
        if not await cleared(slot):
            slot = await stack.enter_async_context(field.pool.slot())
        await slot.files.upload(PROGRAMS, DIRECTORY)
        yield slot


async def cleared(slot: Slot) -> bool:
    """Reset a slot; False where it ended instead."""
    try:
        await slot.reset()
    except ExecError:
        if not slot.closed:
            raise
        return False
    return True


async def exchanged(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Directories of the neighbour and of a third slot change their names while the third is reset."""
    place, secret = f"/tmp/open-{secrets.token_hex(6)}", secrets.token_hex(12)
    process = await begin(field, "exchange", place=place)
    await field.slot.run(["sh", "-c", KEEP, place, secret], check=True)
    kept, rounds = True, SHARED_ROUNDS if field.level.level == "uid" else OWN_ROUNDS
    for _ in range(rounds):
        async with field.pool.slot() as third:
            await third.run(["sh", "-c", LEAVE, place], check=True)
            await cleared(third)
        # Under which name it is may change until the third slot's directory is gone.
        told = await field.slot.run(["sh", "-c", f"for i in $(seq 50); do cat {place}/*/file && break; done"])
        kept = kept and secret in told.stdout
    await process.kill()
    await field.slot.run(["rm", "-rf", place])
    own, harm = await own_trouble(field), await mended(field)
    if harm or not kept:
        return Outcome("not given", harm or "the neighbour's file is gone")
    return Outcome("contained", own) if own else Outcome("prevented", f"{rounds} resets")


async def beside_directories(field: Arena, attack: Attack, against: Against) -> Outcome:
    """A slot is reset before and after the attacker has made very many open directories where slots may write."""
    # In memory: a directory of an overlay takes the kernel longer the more it has, whatever is looked at.
    place = f"/dev/shm/open-{secrets.token_hex(6)}"
    directories = SHARED_DIRECTORIES if field.level.level == "uid" else OWN_DIRECTORIES
    quiet = await reset_s(field)
    process = await begin(field, "spread", place=place, directories=directories)
    beside = await reset_s(field)
    await process.kill()
    told = f"a reset {quiet:.2f} s, beside {directories:,} directories {beside:.2f}"
    own, harm = await own_trouble(field), await mended(field)
    if harm or beside > MOST_TIMES * quiet + MOST_LATER_S:
        return Outcome("not given", harm or told, measured=told)
    return Outcome("contained", own or told, measured=told)


async def reset_s(field: Arena) -> float:
    """How long the reset of a third slot takes that has left a file where all may, at best of several times."""
    taken = []
    for _ in range(TIMES):
        async with field.pool.slot() as third:
            await third.run("mktemp /tmp/left.XXXXXX", check=True)
            since = time.monotonic()
            await cleared(third)
            taken.append(time.monotonic() - since)
    return min(taken)


async def begin(field: Arena, function: str, **aim: object) -> Process:
    """Start a program of the attacker's that goes on until it is ended; returns when it says that it is at it."""
    argv = ["python3", "-B", f"{field.attacker.workspace}/{DIRECTORY}/resets.py", function, json.dumps(aim)]
    process = await field.attacker.spawn(argv)
    with anyio.fail_after(120):
        said = await process.stdout.receive()
    assert said == b"ready\n", said
    return process


RESETS = (
    Attack(
        "left deep",
        "files",
        "leaves a file of mode 0600 in the last of forty open directories, of its neighbour where it sees those, for "
        "the next holder of its slot to read",
        "resets.leave",
        ("own",),
        by=left_deep,
        succeeds_alone=False,
    ),
    Attack(
        "exchanged names",
        "files",
        "keeps swapping directories of the neighbour and of a third slot while the third is reset",
        "resets.exchange",
        by=exchanged,
        succeeds_alone=False,
    ),
)
SLOW_RESETS = (
    Attack(
        "open directories",
        "resources",
        "creates very many open directories while a third slot is reset",
        "resets.spread",
        by=beside_directories,
        succeeds_alone=False,
    ),
)
