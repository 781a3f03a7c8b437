"""The checks of checkpoints, restores and forks of slots with a root of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import ConfigError, SlotBusy, SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

if TYPE_CHECKING:
    from hermes_exec import SandboxPool, Slot

MANY = "i=0; while [ $i -lt 2100 ]; do echo $i > f$i; i=$((i + 1)); done"
"""Makes more changes than a checkpoint copies."""


@asynccontextmanager
async def _prepare(ctx: Context, **options: Any) -> AsyncIterator[tuple[SandboxPool, Slot]]:
    """Acquire a slot in a sandbox with room for its forks."""
    options = {"slots_per_sandbox": 4, "slot_root": "own", **options}
    async with ctx.pool(**options) as pool, pool.slot() as slot:
        try:
            await (await slot.checkpoint()).drop()
        except ConfigError as error:
            raise NotGiven(f"no checkpoints here: {error}") from error
        yield pool, slot


async def _print(slot: Slot, command: str) -> str:
    result = await slot.run(command)
    that(result.ok, result.output)
    return result.stdout


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_restore_returns_to_the_checkpoint(ctx: Context) -> None:
    """A restore brings back the files of the whole root, ends every process, and keeps the slot's id; copied and frozen
    changes alike.
    """
    async with _prepare(ctx) as (_, slot):
        for change in ("echo kept > note && mkdir -p /held && echo x > /held/x && chmod 750 /held", MANY):
            await _print(slot, change)
            checkpoint = await slot.checkpoint()
            await _print(slot, "rm -r ./* /held; echo new > /new")
            await slot.spawn("sleep 60")
            slot_id = slot.id
            await slot.restore(checkpoint)
            equal(slot.id, slot_id, "id")
            equal(await _print(slot, "cat note /held/x; ls -ld /held | cut -c 1-10"), "kept\nx\ndrwxr-x---\n", "files")
            that(not await slot.files.exists("/new"), "a file from after the checkpoint is there")
            equal(len(await slot.processes()), 0, "processes")
        equal(await _print(slot, "cat f2099"), "2099\n", "the last file")


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_forks_are_private_copies(ctx: Context) -> None:
    """Forks start as copies of the checkpoint's slot. Their changes reach no other slot; a reset returns to the
    checkpoint, and a release to the image.
    """
    async with _prepare(ctx) as (pool, slot):
        await _print(slot, f"{MANY}; echo one > note")
        async with pool.fork(slot, 3) as forks:
            equal([await _print(fork, "cat note f2099") for fork in forks], ["one\n2099\n"] * 3, "files of forks")
            await _print(forks[0], "echo changed > note; rm f*")
            equal(await _print(forks[1], "cat note f2099"), "one\n2099\n", "files beside a changed fork")
            equal(await _print(slot, "cat note f2099"), "one\n2099\n", "files of the slot")
            await forks[0].reset()
            equal(await _print(forks[0], "cat note f2099"), "one\n2099\n", "files after the fork's reset")
        async with pool.slots(3) as others:
            equal([await _print(other, "ls -A") for other in others], [""] * 3, "files of released slots")


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_sessions_continue_from_a_checkpoint(ctx: Context) -> None:
    """A session of the checkpoint continues in the restored slot and in a fork; a later one raises SlotClosed."""
    async with _prepare(ctx) as (pool, slot):
        session, late = slot.session(), slot.session()
        await session.run("mkdir d; cd d; export A=1")
        checkpoint = await slot.checkpoint()
        await session.run("cd /; export A=2")
        await late.run("cd /")
        async with pool.slot(from_=checkpoint) as fork:
            expected = f"{slot.workspace}/d 1\n"
            equal((await fork.session(like=session).run("echo $(pwd) $A")).stdout, expected, "the fork's session")
        await slot.restore(checkpoint)
        equal((await session.run("echo $(pwd) $A")).stdout, expected, "the restored session")
        with raises(SlotClosed):
            await late.run("true")


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_busy_slots_refuse_a_checkpoint(ctx: Context) -> None:
    """A command under way, and with `processes="refuse"` any process, is SlotBusy and changes nothing; `"end"` ends
    processes.
    """
    async with _prepare(ctx) as (_, slot):
        async with anyio.create_task_group() as tasks:
            began = anyio.Event()
            tasks.start_soon(partial(slot.run, "echo began; sleep 60", on_output=lambda *_: began.set()))
            await began.wait()
            with raises(SlotBusy):
                await slot.checkpoint()
            tasks.cancel_scope.cancel()
        process = await slot.spawn("sleep 60")
        with raises(SlotBusy):
            await slot.checkpoint(processes="refuse")
        await slot.checkpoint()
        equal(process.exit_code, None, "the exit code of the process that was kept")
        ended = await slot.checkpoint(processes="end")
        that(ended.killed is not None and ended.killed.found > 0, "no process was ended")
        equal(len(await slot.processes()), 0, "processes")


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_forks_start_in_another_sandbox(ctx: Context) -> None:
    """Forks that have no room beside their slot start in another sandbox, with the same files, owners, modes, links,
    holes and sessions; the slot returns to a checkpoint of such a fork.
    """
    async with _prepare(ctx, slots_per_sandbox=2, max_sandboxes=2) as (pool, slot):
        session = slot.session()
        await session.run("cd /tmp; export A=1")
        await _print(
            slot, f"{MANY}; echo one > note; ln note same; mkdir -p /held; chmod 2750 /held; mkfifo /held/pipe"
        )
        describe = "cat note f2099; stat -c '%n %F %a %u %g %h %s %Y' note same f2099 /held /held/pipe"
        expected = await _print(slot, describe)
        checkpoint = await slot.checkpoint()
        async with pool.slots(3, from_=checkpoint) as forks:
            equal(len({fork.sandbox for fork in forks}), 2, "sandboxes of the forks")
            for fork in forks:
                equal(await _print(fork, describe), expected, "files of a fork")
                equal((await fork.session(like=session).run("echo $(pwd) $A")).stdout, "/tmp 1\n", "a fork's session")
            there = next(fork for fork in forks if fork.sandbox != slot.sandbox)
            await _print(there, "echo there > note")
            await slot.restore(await there.checkpoint())
            equal(await _print(slot, "cat note"), "there\n", "files of the slot")


@check("checkpoints", "shell", "own-root", own_pool=True)
async def check_saved_checkpoint_is_loaded(ctx: Context) -> None:
    """A checkpoint that was saved into a file and loaded again starts slots with the same files; sessions continue in
    their directory, without variables.
    """
    async with _prepare(ctx) as (pool, slot):
        session = slot.session()
        await session.run("cd /tmp; export A=held")
        await _print(slot, "echo one > note; ln note same; mkdir -p /held; chmod 2750 /held; mkfifo /held/pipe")
        describe = "cat note; stat -c '%n %F %a %u %g %h %s %Y' note same /held /held/pipe"
        expected = await _print(slot, describe)
        checkpoint = await slot.checkpoint()
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
