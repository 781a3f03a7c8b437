"""The checks of checkpoints, restores and forks: of the whole root of a slot, or else of the slot's directories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from hermes_exec.errors import ConfigError, SlotBusy, SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

if TYPE_CHECKING:
    from hermes_exec import Checkpoint, SandboxPool, Slot
    from hermes_exec.slot.checkpoint import Holds

MANY = "i=0; while [ $i -lt 2100 ]; do echo $i > f$i; i=$((i + 1)); done"
"""Makes more changes than a checkpoint copies."""


class Prepared(NamedTuple):
    """A slot in a sandbox with room for its forks."""

    pool: SandboxPool
    slot: Slot
    hold: Callable[..., Awaitable[Checkpoint]]
    """`slot.checkpoint` for everything that a checkpoint can hold here."""
    directories: Sequence[str]
    """Directories of the slot that a checkpoint holds, for its shell."""


@asynccontextmanager
async def _prepare(ctx: Context, **options: Any) -> AsyncIterator[Prepared]:
    if ctx.facts.own_root:
        options["slot_root"] = "own"
    async with ctx.pool(**{"slots_per_sandbox": 4, **options}) as pool, pool.slot() as slot:
        kinds: tuple[Holds | None, ...] = (None, "directories")
        reasons = []
        for holds in kinds:
            hold = partial(slot.checkpoint, holds=holds)
            try:
                checkpoint = await hold()
            except ConfigError as error:
                reasons.append(str(error))
                continue
            await checkpoint.drop()
            outside = ("/held",) if checkpoint.holds == "root" else ()
            yield Prepared(pool, slot, hold, (".", "$HOME", "$TMPDIR", *outside))
            return
        raise NotGiven(f"no checkpoints here: {'; '.join(reasons)}")


async def _print(slot: Slot, command: str) -> str:
    result = await slot.run(command)
    that(result.ok, result.output)
    return result.stdout


@check("checkpoints", "shell", own_pool=True)
async def check_restore_returns_to_the_checkpoint(ctx: Context) -> None:
    """A restore brings back the files that the checkpoint holds, ends every process, and keeps the slot's id; few and
    many changes alike.
    """
    async with _prepare(ctx) as (_, slot, hold, directories):
        everywhere = " ".join(directories)
        make = f"for d in {everywhere}; do mkdir -p $d/kept && echo x > $d/kept/x && chmod 750 $d/kept; done"
        for change in (make, MANY):
            await _print(slot, change)
            checkpoint = await hold()
            await _print(slot, f"for d in {everywhere}; do rm -r $d/kept; echo new > $d/new; done; rm -f f*")
            await slot.spawn("sleep 60")
            slot_id = slot.id
            await slot.restore(checkpoint)
            equal(slot.id, slot_id, "id")
            listing = await _print(slot, f"for d in {everywhere}; do cat $d/kept/x; ls -ld $d/kept | cut -c 1-10; done")
            equal(listing, "x\ndrwxr-x---\n" * len(directories), "files")
            later = await slot.run(f"for d in {everywhere}; do ls $d/new; done")
            equal(later.stdout, "", "files from after the checkpoint")
            equal(len(await slot.processes()), 0, "processes")
        equal(await _print(slot, "cat f2099"), "2099\n", "the last file")


@check("checkpoints", "shell", own_pool=True)
async def check_checkpoint_keeps_modes_times_and_links(ctx: Context) -> None:
    """Files in a fork and after a restore have the modes, times, sizes and links of the checkpoint, and the slot's
    user owns them.
    """
    async with _prepare(ctx) as (pool, slot, hold, _):
        await _print(
            slot,
            "mkdir d; echo one > d/one; ln d/one two; ln -s d/one link; ln -s /nowhere dangling; mkfifo fifo; "
            "echo shut > shut; chmod 0 shut; echo run > run; chmod 4755 run; chmod 1777 d; "
            "touch -t 200102030405.06 d/one d; echo t > $TMPDIR/t; echo h > $HOME/h; touch -t 200102030405.07 .",
        )
        describe = (
            "for d in . $HOME $TMPDIR; do cd $d; find . -exec stat -c '%n %f %s %h %Y' {} + | grep -v -e shut; done | "
            "sort; for f in one two link; do cat $f 2> /dev/null; done; readlink link; "
            "stat -c '%n %f' shut; find . ! -user $(id -u)"
        )
        before = await _print(slot, describe)
        async with pool.slot(from_=await hold()) as fork:
            equal(await _print(fork, describe), before, "the fork's files")
        checkpoint = await hold()
        await _print(slot, "chmod 700 shut; rm -r ./*")
        await slot.restore(checkpoint)
        equal(await _print(slot, describe), before, "the restored files")


@check("checkpoints", "shell", own_pool=True)
async def check_forks_are_private_copies(ctx: Context) -> None:
    """Forks start as copies of the checkpoint's slot. Their changes reach no other slot; a reset returns to the
    checkpoint, and a release to an empty slot.
    """
    async with _prepare(ctx) as (pool, slot, hold, _):
        await _print(slot, f"{MANY}; echo one > note")
        async with await hold() as checkpoint, pool.fork(checkpoint, 3) as forks:
            equal([await _print(fork, "cat note f2099") for fork in forks], ["one\n2099\n"] * 3, "files of forks")
            await _print(forks[0], "echo changed > note; rm f*")
            equal(await _print(forks[1], "cat note f2099"), "one\n2099\n", "files beside a changed fork")
            equal(await _print(slot, "cat note f2099"), "one\n2099\n", "files of the slot")
            await checkpoint.drop()
            await forks[0].reset()
            equal(await _print(forks[0], "cat note f2099"), "one\n2099\n", "files after the fork's reset")
        async with pool.slots(3) as others:
            equal([await _print(other, "ls -A") for other in others], [""] * 3, "files of released slots")


@check("checkpoints", "shell", own_pool=True)
async def check_sessions_continue_from_a_checkpoint(ctx: Context) -> None:
    """A session of the checkpoint continues in the restored slot and in a fork; a later one raises SlotClosed."""
    async with _prepare(ctx) as (pool, slot, hold, _):
        session, late = slot.session(), slot.session()
        await session.run("mkdir d; cd d; export A=1 HERE=$PWD/x")
        checkpoint = await hold()
        await session.run("cd /; export A=2")
        await late.run("cd /")
        show = "echo $(pwd) $A $HERE"
        async with pool.slot(from_=checkpoint) as fork:
            here = f"{fork.workspace}/d"
            equal((await fork.session(like=session).run(show)).stdout, f"{here} 1 {here}/x\n", "the fork's session")
        await slot.restore(checkpoint)
        here = f"{slot.workspace}/d"
        equal((await session.run(show)).stdout, f"{here} 1 {here}/x\n", "the restored session")
        with raises(SlotClosed):
            await late.run("true")


@check("checkpoints", "shell", own_pool=True)
async def check_busy_slots_refuse_a_checkpoint(ctx: Context) -> None:
    """A command under way, and with `processes="refuse"` any process, is SlotBusy and changes nothing; `"end"` ends
    processes.
    """
    async with _prepare(ctx) as (_, slot, hold, _):
        async with anyio.create_task_group() as tasks:
            began = anyio.Event()
            tasks.start_soon(partial(slot.run, "echo began; sleep 60", on_output=lambda *_: began.set()))
            await began.wait()
            with raises(SlotBusy):
                await hold()
            tasks.cancel_scope.cancel()
        process = await slot.spawn("sleep 60")
        with raises(SlotBusy):
            await hold(processes="refuse")
        await hold()
        equal(process.exit_code, None, "the exit code of the process that was kept")
        ended = await hold(processes="end")
        that(ended.killed is not None and ended.killed.found > 0, "no process was ended")
        equal(len(await slot.processes()), 0, "processes")


@check("checkpoints", "shell", own_pool=True)
async def check_forks_start_in_another_sandbox(ctx: Context) -> None:
    """Forks that have no room beside their slot start in another sandbox, with the same files, owners, modes, links,
    holes and sessions; the slot returns to a checkpoint of such a fork.
    """
    async with _prepare(ctx, slots_per_sandbox=2, max_sandboxes=2) as (pool, slot, hold, directories):
        session = slot.session()
        await session.run("cd /tmp; export A=1")
        last = directories[-1]
        await _print(
            slot,
            f"{MANY}; echo one > note; ln note same; cd; mkdir -p {last}/x; chmod 2750 {last}/x; mkfifo {last}/x/pipe",
        )
        describe = (
            f"cat note f2099; stat -c '%n %F %a %h %s %Y' note same f2099; cd {last}; stat -c '%F %a %h %Y' x x/pipe"
        )
        if directories[-1] == "/held":
            describe += "; stat -c '%n %u %g' x x/pipe"
        expected = await _print(slot, describe)
        checkpoint = await hold()
        async with pool.slots(3, from_=checkpoint) as forks:
            equal(len({fork.sandbox for fork in forks}), 2, "sandboxes of the forks")
            for fork in forks:
                equal(await _print(fork, describe), expected, "files of a fork")
                equal((await fork.session(like=session).run("echo $(pwd) $A")).stdout, "/tmp 1\n", "a fork's session")
            there = next(fork for fork in forks if fork.sandbox != slot.sandbox)
            await _print(there, "echo there > note")
            await slot.restore(await there.checkpoint(holds=checkpoint.holds))
            equal(await _print(slot, "cat note"), "there\n", "files of the slot")


@check("checkpoints", "shell", own_pool=True)
async def check_saved_checkpoint_is_loaded(ctx: Context) -> None:
    """A checkpoint that was saved into a file and loaded again starts slots with the same files; sessions continue in
    their directory, without variables.
    """
    async with _prepare(ctx) as (pool, slot, hold, directories):
        session, last = slot.session(), directories[-1]
        await session.run("cd /tmp; export A=held")
        await _print(
            slot, f"echo one > note; ln note same; mkdir -p {last}/x; chmod 2750 {last}/x; mkfifo {last}/x/pipe"
        )
        describe = f"cat note; stat -c '%n %F %a %h %s %Y' note same; cd {last}; stat -c '%F %a %h %Y' x x/pipe"
        if last == "/held":
            describe += "; stat -c '%n %u %g' x x/pipe"
        expected = await _print(slot, describe)
        checkpoint = await hold()
        with TemporaryDirectory() as directory:
            await checkpoint.save(f"{directory}/saved.hxcp")
            await checkpoint.drop()
            loaded = await pool.load(f"{directory}/saved.hxcp")
        async with pool.slot(from_=loaded) as fork:
            equal(await _print(fork, describe), expected, "files of the fork")
            (session_id,) = loaded.sessions
            continued = await fork.session(like=session_id).run("echo $(pwd) $A")
            equal(continued.stdout, "/tmp\n", "the session of the fork")
        await loaded.drop()
