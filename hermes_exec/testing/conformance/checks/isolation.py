"""Two slots in one sandbox that attack each other, and the runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, get_args

from hermes_exec.config import Limits, ProfileConfig
from hermes_exec.errors import ConfigError, IsolationError
from hermes_exec.results import IsolationLevel
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

if TYPE_CHECKING:
    from hermes_exec import SandboxPool, Slot

LEVELS: tuple[str, ...] = get_args(IsolationLevel)


@asynccontextmanager
async def _two(ctx: Context, floor: str = "uid", **overrides: object) -> AsyncIterator[tuple[Slot, Slot]]:
    """A thief and a victim in one sandbox."""
    async with AsyncExitStack() as stack:
        try:
            pool = await stack.enter_async_context(ctx.pool(slots_per_sandbox=2, min_isolation="uid", **overrides))
            thief, victim = await stack.enter_async_context(pool.slots(2))
        except IsolationError as error:
            raise NotGiven(f"{overrides} is refused here: {error}") from error
        level = thief.isolation.level
        if LEVELS.index(level) < LEVELS.index(floor):
            held = f"{thief.isolation.processes}; {thief.isolation.filesystem}"
            raise NotGiven(f"slots of a sandbox share this at the level {level} ({held})")
        equal(thief.sandbox, victim.sandbox, "the sandbox of both")
        yield thief, victim


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_no_reading_of_a_neighbours_files(ctx: Context) -> None:
    """A slot cannot read, list or write what lies in another's workspace, home and tmp, whatever its modes."""
    async with _two(ctx) as (thief, victim):
        for directory in (victim.workspace, victim.home, victim.tmp):
            path = f"{directory}/secret-{ctx.mark}"
            await victim.files.write_bytes(path, b"secret", mode=0o666)
            for mode in "rw":
                answer = (await ctx.applet("open", path, mode, slot=thief)).stdout.strip()
                that(answer in {"ENOENT", "EACCES", "EPERM", "ENOTDIR"}, f"{path} for {mode}: {answer}")
            with raises(OSError):
                await thief.files.read_bytes(path)
            equal(await victim.files.read_bytes(path), b"secret", "the victim's file")


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_no_way_through_links(ctx: Context) -> None:
    """A symbolic link into a neighbour's directory gives nothing, by command, file call or tree."""
    async with _two(ctx) as (thief, victim):
        await victim.files.write_text("secret", ctx.mark)
        source = ctx.directory / "tree"
        source.mkdir()
        (source / "note").write_text("x")
        argv = await ctx.argv("echo", slot=thief)
        that(argv, "no helper")
        (source / "relative").symlink_to("note")
        await thief.files.upload(source, "tree")
        for path in (
            f"{victim.workspace}/secret",
            f"/proc/1/root{victim.workspace}/secret",
            f"/proc/self/root/{victim.workspace}/secret",
        ):
            with raises(OSError):
                await thief.files.read_bytes(path)
            with raises(OSError):
                await thief.files.copy(path, "stolen")


@check("isolation", "shell", "shared-sandbox", own_pool=True)
async def check_own_files_move_and_link_between_directories(ctx: Context) -> None:
    """What keeps neighbours out does not keep a slot from linking and moving its files and directories, without a
    copy.
    """
    async with _two(ctx) as (slot, _):
        script = "mkdir -p a/b c && echo x >a/b/f && ln a/b/f c/f && mv a/b c/b && mv c/b/f f && ls -i f c/f"
        done = await slot.run(script)
        that(done.ok, done.stderr)
        moved, linked = (line.split()[0] for line in done.stdout.splitlines())
        equal(moved, linked, "the number of one file")


@check("isolation", "helper", "shared-sandbox", "procfs", own_pool=True)
async def check_no_view_of_a_neighbours_processes(ctx: Context) -> None:
    """In a process namespace of its own a slot does not see a neighbour's command lines."""
    async with _two(ctx, "namespaces") as (thief, victim):
        await ctx.background("sleep", 60, ctx.mark, slot=victim)
        await ctx.expect_alive(1)
        that(ctx.mark not in (await ctx.applet("ps", slot=thief)).stdout, "the neighbour's process is visible")


@check("isolation", "helper", "shared-sandbox", "procfs", own_pool=True)
async def check_no_killing_of_a_neighbours_processes(ctx: Context) -> None:
    """A slot can neither signal nor trace a neighbour's process, nor open its memory."""
    async with _two(ctx) as (thief, victim):
        process = await ctx.background("sleep", 60, ctx.mark, slot=victim)
        await ctx.expect_alive(1)
        if thief.isolation.level == "uid":
            for answer in (
                await ctx.applet("kill", process.pid, 0, slot=thief),
                await ctx.applet("ptrace", process.pid, slot=thief),
            ):
                words = set(answer.stdout.split())
                that(words and words <= {"EPERM", "ESRCH", "EACCES"}, f"answers: {words}")
        await ctx.applet("kill", process.pid, 9, slot=thief)
        await thief.kill_all()
        with raises(TimeoutError):
            await process.wait(0.3)
        await ctx.expect_alive(1, within_s=1)


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_reset_of_one_leaves_the_neighbour(ctx: Context) -> None:
    """Resetting a slot touches no process and no file of its neighbour."""
    async with _two(ctx) as (thief, victim):
        process = await ctx.background("sleep", 60, ctx.mark, slot=victim)
        await victim.files.write_text("kept", "x")
        await thief.reset()
        with raises(TimeoutError):
            await process.wait(0.2)
        equal(await victim.files.read_text("kept"), "x", "the neighbour's file")


async def _shared_directory(ctx: Context, directory: str) -> None:
    async with _two(ctx, "namespaces") as (thief, victim):
        path = f"{directory}/{ctx.mark}"
        try:
            await victim.files.write_bytes(path, b"x", mode=0o666)
        except OSError as error:
            raise NotGiven(f"{directory} cannot be written in a slot: {error}") from error
        that(not await thief.files.exists(path), f"{path} is visible to the neighbour")


@check("isolation", "shared-sandbox", own_pool=True)
async def check_no_common_tmp(ctx: Context) -> None:
    """/tmp is each slot's own, in a mount namespace of its own."""
    await _shared_directory(ctx, "/tmp")


@check("isolation", "shared-sandbox", own_pool=True)
async def check_no_common_shared_memory(ctx: Context) -> None:
    """/dev/shm is each slot's own, in a mount namespace of its own."""
    await _shared_directory(ctx, "/dev/shm")


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_no_common_ports(ctx: Context) -> None:
    """With network=False each slot has its own loopback: a neighbour's port is not reachable."""
    async with _two(ctx, "namespaces", network=False) as (thief, victim):
        process = await ctx.background("listen", 0, slot=victim)
        port = int((await process.stdout.receive()).rpartition(b":")[2])
        equal((await ctx.applet("dial", "127.0.0.1", port, slot=victim)).stdout.strip(), "ok", "the victim itself")
        equal((await ctx.applet("dial", "127.0.0.1", port, slot=thief)).stdout.strip(), "ECONNREFUSED", "the neighbour")


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_no_common_abstract_sockets(ctx: Context) -> None:
    """With network=False a neighbour's abstract Unix socket is not reachable."""
    async with _two(ctx, "namespaces", network=False) as (thief, victim):
        process = await ctx.background("abstract", ctx.mark, slot=victim)
        await process.stdout.receive()
        equal((await ctx.applet("reach", ctx.mark, slot=victim)).stdout.strip(), "ok", "the victim itself")
        that(
            (await ctx.applet("reach", ctx.mark, slot=thief)).stdout.strip() != "ok",
            "the neighbour's socket was reached",
        )


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_scoped_abstract_sockets(ctx: Context) -> None:
    """If `slot.isolation.network` reports scoped abstract sockets, they stay within the slot, with the network on."""
    async with _two(ctx) as (thief, victim):
        if "abstract sockets within the slot" not in victim.isolation.network:
            raise NotGiven(f"the kernel cannot keep them apart here (network: {victim.isolation.network})")
        process = await ctx.background("abstract", ctx.mark, slot=victim)
        await process.stdout.receive()
        equal((await ctx.applet("reach", ctx.mark, slot=victim)).stdout.strip(), "ok", "the victim itself")
        that(
            (await ctx.applet("reach", ctx.mark, slot=thief)).stdout.strip() != "ok",
            "the neighbour's socket was reached",
        )


@check("isolation", "helper", "shared-sandbox", own_pool=True)
async def check_slots_have_their_own_users(ctx: Context) -> None:
    """Two slots of a sandbox have different user ids, neither of them 0."""
    async with _two(ctx) as slots:
        owners = [await slot.files.stat(slot.workspace) for slot in slots]
        uids = [int((await ctx.applet("id", slot=slot)).stdout.split()[0]) for slot in slots]
        if slots[0].isolation.level == "namespaces" and len(set(uids)) == 1:
            raise NotGiven(f"the namespaces of an ordinary user have one user only ({slots[0].isolation.users})")
        that(0 not in uids and uids[0] != uids[1], f"uids {uids}, owners {[o.uid for o in owners]}")


@check("isolation", "helper", "procfs")
async def check_the_runner_is_out_of_reach(ctx: Context) -> None:
    """A tenant can neither trace the runner of its sandbox nor open its memory or program for writing. Tried only where
    the slot has process numbers of its own.
    """
    if not ctx.facts.own_pids:
        raise NotGiven("not tried: the slot is not proven to have its own process namespace")
    runner = (await ctx.applet("status", "PPid")).stdout.split()[1]
    words = (await ctx.applet("ptrace", runner)).stdout.split()
    that("ok" not in words, f"trace, memory: {words}")
    equal(
        (await ctx.applet("open", f"/proc/{runner}/exe", "w")).stdout.strip() == "ok",
        False,
        "its program was opened for writing",
    )


@check("isolation", "helper", "confined")
async def check_the_runners_socket_is_out_of_reach(ctx: Context) -> None:
    """A tenant that is not the sandbox's only one cannot connect to the runner's socket."""
    if ctx.slot.isolation.level == "landlock":
        raise NotGiven("Landlock does not restrict connections to UNIX sockets; the runner authenticates its driver")
    directory = ctx.slot.workspace
    while directory.count("/") > 1:
        directory = directory.rpartition("/")[0]
        answer = (await ctx.applet("reach", f"{directory}/run/socket")).stdout.strip()
        that(answer != "ok" or ctx.slot.isolation.level == "exclusive", f"{directory}/run/socket was reached")


@check("isolation", "helper", "procfs", "confined")
async def check_other_users_data_is_out_of_reach(ctx: Context) -> None:
    """Host secrets are not readable: the password file and root's home."""
    for path in ("/etc/shadow", "/root/.ssh/id_rsa", "/proc/1/environ", "/var/run/docker.sock"):
        if ctx.slot.isolation.level != "exclusive":
            that((await ctx.applet("open", path, "r")).stdout.strip() != "ok", f"{path} was opened")


@check("isolation")
async def check_isolation_is_reported(ctx: Context) -> None:
    """A slot reports its level and the isolation of files, processes, users, network and limits."""
    isolation = ctx.slot.isolation
    that(isolation.level in LEVELS, f"level {isolation.level!r}")
    for what in ("filesystem", "processes", "users", "network"):
        that(getattr(isolation, what), f"no report on {what}")


@check("isolation", own_pool=True)
async def check_isolation_floor_is_kept(ctx: Context) -> None:
    """A floor that cannot be met refuses the launch and never gives a weaker slot."""
    from hermes_exec.errors import ConfigError

    try:
        async with ctx.pool(min_isolation="namespaces", slots_per_sandbox=2) as pool, pool.slot() as slot:
            that(slot.isolation.level in {"namespaces", "exclusive"}, f"acquired at the level {slot.isolation.level}")
    except (IsolationError, ConfigError) as error:
        that(
            "isolation" in str(error).lower() or "namespace" in str(error).lower(),
            f"the message has no reason: {error}",
        )


LIMITS = Limits(cpus=1, memory_mb=512, pids=200, disk_mb=48, open_files=256, file_size_mb=40, cpu_time_s=60)


async def _is_acquired(pool: SandboxPool, **settings: object) -> bool:
    """Return whether a slot with these settings is acquired and works."""
    try:
        async with pool.slot(ProfileConfig.model_validate(settings), timeout_s=60) as slot:
            await slot.files.write_text("x", "y")
    except (ConfigError, IsolationError):
        return False
    return True


@check("isolation", own_pool=True, timeout_s=240)
async def check_abilities_are_what_requests_get(ctx: Context) -> None:
    """pool.abilities takes no slot and names the limits, users and network that requests get, and no others."""
    async with ctx.pool() as pool:
        abilities = await pool.abilities()
        stats = pool.stats()
        equal((stats.launches, stats.slots_in_use, stats.acquired), (1, 0, 0), "launches, slots in use and acquired")
        async with pool.slot() as slot:
            equal(pool.stats().launches, 1, "launches")
            equal(slot.isolation.level, abilities.isolation, "level")
            equal(ctx.facts.own_root or slot.isolation.level == "exclusive", abilities.own_root, "own root")
            try:
                await slot.files.exists("/", user="4321")
                others = True
            except ConfigError:
                others = False
            equal(others, abilities.users, "other users")
        equal(await _is_acquired(pool, network=False), abilities.network_off, "a slot without network")
        every = LIMITS.to_dict()
        for which, names in (("slot_limits", abilities.slot_limits), ("limits", abilities.sandbox_limits)):
            possible = {name: value for name, value in every.items() if name in names}
            that(await _is_acquired(pool, **{which: possible}), f"{which} {sorted(possible)} are refused")
            for name in sorted(every.keys() - names):
                that(not await _is_acquired(pool, **{which: {name: every[name]}}), f"{which} can have {name}")
