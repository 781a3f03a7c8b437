"""What a reset and a release leave: nothing."""

from __future__ import annotations

from hermes_exec.errors import SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import check


@check("reset", "helper")
async def check_reset_empties_the_slots_folders(ctx: Context) -> None:
    """Reset empties workspace, home and tmp, whatever the modes and names of what is in them, and keeps the slot's
    id.
    """
    slot = ctx.slot
    before = {
        folder: [e.name for e in await slot.files.list(folder)] for folder in (slot.workspace, slot.home, slot.tmp)
    }
    for folder in before:
        await slot.files.write_text(f"{folder}/left/.hidden/new\nline", "x")
        await slot.files.chmod(f"{folder}/left/.hidden", 0o000)
        await slot.files.write_text(f"{folder}/.profile", "echo intruder")
    slot_id = slot.id
    await slot.reset()
    after = {folder: [e.name for e in await slot.files.list(folder)] for folder in before}
    equal(after, before, "contents of workspace, home and tmp")
    equal(slot.id, slot_id, "id")
    equal((await ctx.applet("echo", "usable")).stdout, "usable\n", "the slot afterwards")


@check("reset", "helper")
async def check_reset_ends_every_process(ctx: Context) -> None:
    """Reset ends everything that the slot started, runaways too, counted from outside."""
    await ctx.applet("tree", 120, ctx.mark, "end")
    await ctx.background("stubborn", 120, ctx.mark)
    await ctx.alive(9)
    await ctx.slot.reset()
    await ctx.gone()


@check("reset", "helper")
async def check_reset_closes_handles(ctx: Context) -> None:
    """Handles from before a reset raise SlotClosed: processes, connections, calls under way."""
    process = await ctx.background("sleep", 60)
    await ctx.slot.reset()
    with raises(SlotClosed):
        await process.wait(5)
    with raises(SlotClosed):
        await process.output(0)


@check("reset", "shell")
async def check_reset_forgets_shared_memory(ctx: Context) -> None:
    """What a tenant left in /tmp and /dev/shm under its own name is gone after a reset."""
    made = await ctx.slot.run(f"for d in /tmp /dev/shm; do [ -w $d ] && echo x > $d/{ctx.mark}; done; true")
    that(made.ok, made.stderr)
    await ctx.slot.reset()
    left = await ctx.slot.run(f"ls /tmp/{ctx.mark} /dev/shm/{ctx.mark} 2>/dev/null")
    equal(left.stdout, "", "what is left")


@check("reset", "helper", own_pool=True)
async def check_next_tenant_finds_nothing(ctx: Context) -> None:
    """A slot that is lent again has no file and no process of its last tenant."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            for folder in (slot.workspace, slot.home, slot.tmp):
                await slot.files.write_text(f"{folder}/{ctx.mark}", "secret")
            await ctx.background("tree", 120, ctx.mark, slot=slot)
            await ctx.alive(9)
        await ctx.gone()
        async with pool.slot() as slot:
            for folder in (slot.workspace, slot.home, slot.tmp):
                that(not await slot.files.exists(f"{folder}/{ctx.mark}"), f"a file is left in {folder}")
            equal((await ctx.applet("echo", "clean", slot=slot)).stdout, "clean\n", "stdout")


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


@check("reset", "root", "helper", own_pool=True)
async def check_changed_box_is_replaced(ctx: Context) -> None:
    """A whole box in which the tenant changed the image's files is replaced, not reset."""
    async with ctx.pool(slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            path = f"/{ctx.mark}"
            written = await ctx.applet("write", path, slot=slot, user="root", stdin="changed")
            first = slot.sandbox
        async with pool.slot() as slot:
            that(not await slot.files.exists(path), "the last tenant's change is still there")
            that(not written.ok or slot.sandbox != first, "the changed box was lent again")
