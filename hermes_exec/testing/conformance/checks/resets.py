"""The checks that a reset and a release leave nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.errors import SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

if TYPE_CHECKING:
    from hermes_exec import Slot


def _directories(ctx: Context, slot: Slot) -> list[str]:
    """The slot's directories that its tenant can write to."""
    return [slot.workspace, slot.tmp] if ctx.facts.image_home else [slot.workspace, slot.home, slot.tmp]


@check("reset", "helper")
async def check_reset_empties_the_slots_directories(ctx: Context) -> None:
    """Reset empties workspace, home and tmp, whatever the modes and names of the files, and keeps the slot's
    id.
    """
    slot = ctx.slot
    before = {directory: [e.name for e in await slot.files.list(directory)] for directory in _directories(ctx, slot)}
    for directory in before:
        await slot.files.write_text(f"{directory}/left/.hidden/new\nline", "x")
        await slot.files.chmod(f"{directory}/left/.hidden", 0o000)
        await slot.files.write_text(f"{directory}/.profile", "echo intruder")
    slot_id = slot.id
    await slot.reset()
    after = {directory: [e.name for e in await slot.files.list(directory)] for directory in before}
    equal(after, before, "contents of workspace, home and tmp")
    equal(slot.id, slot_id, "id")
    equal((await ctx.applet("echo", "usable")).stdout, "usable\n", "the slot afterwards")


@check("reset", "helper")
async def check_reset_ends_every_process(ctx: Context) -> None:
    """Reset ends everything that the slot started, runaways too, counted from outside."""
    await ctx.applet("tree", 120, ctx.mark, "end")
    await ctx.background("stubborn", 120, ctx.mark)
    await ctx.expect_alive(9)
    await ctx.slot.reset()
    await ctx.expect_none_left()


@check("reset", "helper")
async def check_reset_closes_handles(ctx: Context) -> None:
    """Handles from before a reset raise SlotClosed: processes, connections, calls under way."""
    process = await ctx.background("sleep", 60)
    await ctx.slot.reset()
    with raises(SlotClosed):
        await process.wait(5)
    with raises(SlotClosed):
        await process.output(0)


@check("reset", "shell", "confined")
async def check_reset_forgets_shared_memory(ctx: Context) -> None:
    """Files of the tenant in /tmp and /dev/shm are gone after a reset."""
    created = await ctx.slot.run(f"for d in /tmp /dev/shm; do [ -w $d ] && echo x > $d/{ctx.mark}; done; true")
    that(created.ok, created.stderr)
    await ctx.slot.reset()
    left = await ctx.slot.run(f"ls /tmp/{ctx.mark} /dev/shm/{ctx.mark} 2>/dev/null")
    equal(left.stdout, "", "remaining files")


@check("reset", "helper", own_pool=True)
async def check_next_tenant_finds_nothing(ctx: Context) -> None:
    """A slot that is acquired again has no file and no process of its last holder."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            for directory in _directories(ctx, slot):
                await slot.files.write_text(f"{directory}/{ctx.mark}", "secret")
            await ctx.background("tree", 120, ctx.mark, slot=slot)
            await ctx.expect_alive(9)
        await ctx.expect_none_left()
        async with pool.slot() as slot:
            for directory in _directories(ctx, slot):
                that(not await slot.files.exists(f"{directory}/{ctx.mark}"), f"a file is left in {directory}")
            equal((await ctx.applet("echo", "clean", slot=slot)).stdout, "clean\n", "stdout")


@check("helper", own_pool=True)
async def check_calls_start_in_the_workdir(ctx: Context) -> None:
    """`workdir` of a request is where calls start and relative paths begin, until the slot is acquired again."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            equal(slot.workdir, slot.workspace, "where calls start by themselves")
            directory = f"{slot.tmp}/{ctx.mark}/sub"
        async with pool.slot(workdir=directory) as slot:
            equal(slot.workdir, directory, "slot.workdir")
            result = await ctx.applet("write", "written", slot=slot, stdin="by a command")
            that(result.ok, f"{result}")
            equal(await slot.files.read_text(f"{directory}/written"), "by a command", "the file of a command")
            equal(await slot.files.read_text("written"), "by a command", "the same by a relative path")
            equal([entry.path for entry in await slot.files.list()], ["written"], "names in the directory")
        async with pool.slot() as slot:
            await ctx.applet("write", "written", slot=slot, stdin="again")
            equal(await slot.files.read_text(f"{slot.workspace}/written"), "again", "the file of the next holder")


@check("reset", "helper", own_pool=True)
async def check_released_slot_is_closed(ctx: Context) -> None:
    """After release each use raises SlotClosed; releasing twice is harmless."""
    async with ctx.pool() as pool:
        slot = await pool.acquire()
        await pool.release(slot)
        await pool.release(slot)
        with raises(SlotClosed):
            await slot.run(["true"])
        with raises(SlotClosed):
            await slot.files.read_bytes("x")


@check("reset", "helper", own_pool=True)
async def check_exclusive_sandbox_is_replaced(ctx: Context) -> None:
    """A whole sandbox that comes back is replaced by a fresh one; a reset does the same under the slot that is held."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            if slot.isolation.level != "exclusive":
                raise NotGiven(f"slots have the level {slot.isolation.level} here, not exclusive")
            seen, facts, path = slot.sandbox, (slot.id, slot.workspace, slot.home, slot.tmp), f"{slot.tmp}/{ctx.mark}"
            await ctx.applet("write", path, slot=slot, stdin="changed")
            await slot.reset()
            that(slot.sandbox != seen, "the slot was reset in its sandbox")
            equal((slot.id, slot.workspace, slot.home, slot.tmp), facts, "id and paths")
            that(not await slot.files.exists(path), "a change from before the reset is still there")
            await ctx.applet("write", path, slot=slot, stdin="changed")
            seen = slot.sandbox
        async with pool.slot() as slot:
            that(slot.sandbox != seen, "the sandbox of the last tenant was acquired again")
            that(not await slot.files.exists(path), "the last tenant's change is still there")
