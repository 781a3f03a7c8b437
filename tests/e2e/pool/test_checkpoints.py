"""Checkpoints, restores and forks of slots with a root of their own, on Docker and Apptainer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, get_args

import anyio
import pytest

from hermes_exec import (
    AcquireTimeout,
    CheckpointLost,
    ConfigError,
    ProfileConfig,
    SandboxPool,
    Slot,
    SlotBusy,
    SlotClosed,
    tools,
)
from hermes_exec.slot.checkpoint import ProcessPolicy
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]
SMALL = "echo one > note; mkdir -p d /opt; echo two > d/x; rm /etc/issue; echo 3 > /opt/three; chmod 4755 /opt/three"
LARGE = "for i in $(seq 2500); do echo $i > f$i; done; head -c 40000000 /dev/urandom > big"
DIGEST = (
    "find / -xdev -not -path '/proc*' -not -path '/sys*' -not -path '/dev*' -printf '%p %y %m %u %g %T@ %l\\n' "
    "| sort | sha256sum; find /workspace /opt /etc /tmp -xdev -type f -exec sha256sum {} + | sort | sha256sum"
)
"""Names, kinds, modes, owners and times of everything in the root, and the contents of the parts that tests change."""


@pytest.fixture
def pool_of(own_root_pool: Factory) -> Factory:
    return partial(own_root_pool, max_sandboxes=1, slots_per_sandbox=4)


@pytest.fixture
async def pool(anyio_backend: str, pool_of: Factory) -> AsyncIterator[SandboxPool]:
    async with pool_of() as made:
        yield made


async def output(slot: Slot, command: str, **options: Any) -> str:
    """Run a command that succeeds, and return what it printed."""
    result = await slot.run(command, **options)
    assert result.ok, result
    return result.stdout


async def typed(toolbox: tools.Toolbox, command: str) -> str:
    """Run a command in a model's terminal, and return what it printed."""
    return str((await toolbox.call("terminal", {"command": command})).data["output"]).strip()


async def eventually(condition: Callable[[], Awaitable[bool]], patience_s: float = 30.0) -> None:
    """Wait for this to become true in a slot."""
    for _ in range(round(patience_s / 0.02)):
        if await condition():
            return
        await anyio.sleep(0.02)
    raise AssertionError(f"not within {patience_s:g} s")


@pytest.mark.parametrize("change", [SMALL, LARGE], ids=["copy", "freeze"])
async def test_root_is_equal_in_slot_forks_and_after_restore(pool: SandboxPool, change: str) -> None:
    async with pool.slot() as slot:
        await output(slot, change)
        before = await output(slot, DIGEST)
        async with await slot.checkpoint() as checkpoint:
            assert await output(slot, DIGEST) == before
            async with pool.slots(3, from_=checkpoint) as forks:
                assert [await output(fork, DIGEST) for fork in forks] == [before] * 3
                await output(forks[0], "echo changed > note; rm -rf d f1; touch /fork")
                assert await output(forks[1], DIGEST) == before
            await output(slot, "rm -rf * /opt/three; echo other > /etc/issue; touch /new")
            assert await output(slot, DIGEST) != before
            identity = slot.id
            await slot.restore(checkpoint)
            assert (slot.id, await output(slot, DIGEST)) == (identity, before)
            sizes = await checkpoint.sizes()
            assert len(sizes) == 1
            assert sizes[0].bytes > (40_000_000 if change is LARGE else 0)
    async with pool.slots(4) as slots:
        for empty in slots:
            assert await output(empty, "ls; ls -d /opt 2>/dev/null; true") == ""


async def test_nested_checkpoints_restore_in_any_order(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        checkpoints = []
        for number in range(12):
            await output(slot, f"echo {number} > n{number}")
            if number % 3 == 0:
                await output(slot, f"head -c 20000000 /dev/zero > big{number}")
            checkpoints.append(await slot.checkpoint())
        for number in (11, 3, 7, 0, 10):
            await slot.restore(checkpoints[number])
            names = (await output(slot, "ls n* | wc -l; cat n*")).split()
            assert names[0] == str(number + 1)
            await output(slot, "rm n0; echo branch > b")
            async with pool.slot(from_=checkpoints[number]) as fork:
                assert await output(fork, "cat n0; ls b 2>&1 | grep -c No") == "0\n1\n"
        for checkpoint in checkpoints:
            await checkpoint.drop()
        assert await output(slot, "cat b n10") == "branch\n10\n"
        with pytest.raises(SlotClosed, match="dropped"):
            await slot.restore(checkpoints[0])


@pytest.mark.loops
async def test_sessions_continue_in_slot_restored_slot_and_forks(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        session, late = slot.session(), slot.session()
        await session.run("mkdir -p d && cd d && X=1 && export Y=2 && f() { echo f$X$Y; } && umask 077 && set -f")
        state = "pwd; f; umask; case $- in *f*) echo noglob;; esac"
        expected = (await session.run(state)).stdout
        assert expected.endswith("/d\nf12\n0077\nnoglob\n")
        checkpoint = await slot.checkpoint()
        assert (await session.run(state)).stdout == expected
        assert checkpoint.sessions == {session.id: session.cwd}
        await session.run("cd / && X=9; set +f")
        await late.run("true")
        await slot.restore(checkpoint)
        assert session.cwd.endswith("/d")
        assert (await session.run(state)).stdout == expected
        with pytest.raises(SlotClosed):
            await late.run("true")
        async with pool.slots(2, from_=checkpoint) as (one, two):
            first, second = one.session(like=session), two.session(like=session)
            assert first is one.session(like=session)
            assert (await first.run(state)).stdout == (await second.run(state)).stdout == expected
            await first.run("X=5; cd /")
            assert (await second.run("f; pwd")).stdout.startswith("f12\n")
            async with await one.checkpoint() as nested, pool.slot(from_=nested) as three:
                assert (await three.session(like=session).run("f; pwd")).stdout == "f52\n/\n"
                assert (await three.session(like=first).run("f; pwd")).stdout == "f52\n/\n"
            with pytest.raises(ConfigError, match="does not hold that session"):
                one.session(like=late)
            with pytest.raises(ConfigError, match="cwd="):
                one.session(like=session, cwd="/")
        await session.run("X=7")
        await slot.restore(checkpoint)
        assert (await session.run("f")).stdout == "f12\n"


async def test_processes_are_kept_refused_or_ended(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        process = await slot.spawn("i=0; while :; do i=$((i + 1)); echo $i > count; sleep 0.01; done")
        await eventually(lambda: slot.files.exists("count"))
        with pytest.raises(SlotBusy, match="while"):
            await slot.checkpoint(processes="refuse")
        checkpoint = await slot.checkpoint()
        count = int(await output(slot, "cat count || echo 0"))

        async def goes_on() -> bool:
            return int(await output(slot, "cat count") or 0) > count

        await eventually(goes_on)
        assert process.exit_code is None
        async with pool.slot(from_=checkpoint) as fork:
            assert [each.argv for each in await fork.processes()] == []
        ended = await slot.checkpoint(processes="end")
        assert ended.killed is not None
        assert ended.killed.found >= 1
        assert ended.killed.left == 0
        assert await slot.processes() == []
        again = await slot.checkpoint(processes="refuse")
        assert again.killed is None
        with pytest.raises(ConfigError, match="'keep', 'refuse' or 'end'"):
            await slot.checkpoint(processes="stop")  # type: ignore[arg-type]


async def test_left_out_lists_what_the_slot_had(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        assert (await slot.checkpoint()).left_out == ()
        await output(slot, "echo x > /dev/shm/x; ipcmk -Q")
        await slot.spawn(["sleep", "100"])
        for processes in get_args(ProcessPolicy)[::2]:
            assert (await slot.checkpoint(processes=processes)).left_out == (
                "processes with their memory, connections and deleted files: 1 (sleep)",
                "files in memory: /dev/shm",
                "System V objects: 1",
            )
        assert (await slot.checkpoint()).left_out == ()  # they end with the processes
        await output(slot, f"echo x > /dev/shm/x; {LARGE}")
        checkpoint = await slot.checkpoint()  # a freeze would lose them
        assert (checkpoint.copied, checkpoint.left_out) == (True, ("files in memory: /dev/shm",))
        assert await output(slot, "cat /dev/shm/x") == "x\n"


async def test_command_under_way_refuses_a_checkpoint(pool: SandboxPool) -> None:
    async with pool.slot() as slot, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(slot.run, "touch began; sleep 60"))
        await eventually(lambda: slot.files.exists("began"))
        for processes in get_args(ProcessPolicy):
            with pytest.raises(SlotBusy):
                await slot.checkpoint(processes=processes)
        await until(lambda: pool.stats().checkpoints == 0)
        tasks.cancel_scope.cancel()


async def test_fork_resets_to_its_checkpoint_and_releases_to_the_image(pool_of: Factory) -> None:
    async with pool_of(files={"given": b"file"}, slot_setup="echo $((RANDOM)) > drawn; echo x >> counted") as pool:
        async with pool.slot() as slot:
            await output(slot, "echo prepared > note; rm given")
            checkpoint = await slot.checkpoint()
            drawn = await output(slot, "cat drawn")
            async with pool.slots(2, from_=checkpoint, workdir="/srv/work") as (fork, other):
                state = "pwd; cat /workspace/note /workspace/drawn /workspace/counted; ls /workspace/given 2>&1"
                expected = await output(fork, state + "; true")
                assert expected.startswith(f"/srv/work\nprepared\n{drawn}x\n")
                await checkpoint.drop()
                await output(fork, "rm /workspace/*")
                await fork.reset()
                assert await output(fork, state + "; true") == expected
                await output(other, "echo still > here")
        async with pool.slots(4) as slots:
            for fresh in slots:
                assert await output(fresh, "cat given; cat counted; ls note 2>&1 | grep -c No") == "filex\n1\n"


async def test_pool_fork_copies_a_slot_and_keeps_no_checkpoint(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await output(slot, "echo shared > note")
        async with pool.fork(slot, 3) as forks:
            assert [await output(fork, "cat note") for fork in forks] == ["shared\n"] * 3
            assert len({fork.id for fork in forks}) == 3
            await until(lambda: pool.stats().checkpoints == 0)
        with pytest.raises(ConfigError, match="slots_per_sandbox=5"):
            await pool.fork(slot, 4).__aenter__()
        checkpoint = await slot.checkpoint()
        with pytest.raises(ConfigError, match="slots_per_sandbox=5"):
            await pool.slots(4, from_=checkpoint).__aenter__()
    async with pool.fork(checkpoint, 4) as forks:
        assert [await output(fork, "cat note") for fork in forks] == ["shared\n"] * 4


async def test_forks_have_the_settings_of_their_own_request(pool_of: Factory) -> None:
    async with pool_of(env={"WHO": "pool"}, secrets={"KEY": "secret"}) as pool, pool.slot() as slot:
        checkpoint = await slot.checkpoint()
        profile = ProfileConfig(env={"WHO": "fork"})
        async with pool.slot(profile, from_=checkpoint) as fork, pool.slot(from_=checkpoint) as plain:
            assert await output(fork, "echo $WHO") == "fork\n"
            assert await output(plain, "echo $WHO $KEY") == "pool secret\n"
        with pytest.raises(ConfigError, match="leave out profile= and image="):
            await pool.acquire(ProfileConfig(setup="touch /prepared"), from_=checkpoint)


async def test_sandbox_is_kept_for_its_checkpoint_until_it_is_dropped(pool_of: Factory) -> None:
    async with pool_of(idle_timeout_s=0.2) as pool:
        async with pool.slot() as slot:
            await output(slot, "echo kept > note")
            checkpoint = await slot.checkpoint()
        await anyio.sleep(1.0)
        assert pool.stats().checkpoints == 1
        async with pool.slot(from_=checkpoint) as fork:
            assert fork.sandbox == slot.sandbox
            assert await output(fork, "cat note") == "kept\n"
        await checkpoint.drop()
        await checkpoint.drop()
        await until(lambda: pool.stats().sandboxes["ready"] == 0)
        with pytest.raises(SlotClosed, match="dropped"):
            await pool.acquire(from_=checkpoint)


async def test_checkpoint_is_lost_with_its_sandbox(pool_of: Factory) -> None:
    async with pool_of(max_sandboxes=2) as pool:
        slot = await pool.acquire()
        checkpoint = await slot.checkpoint()
        pooled = pool._life.running.releases.held[slot.id]  # type: ignore[union-attr]
        await pooled.sandbox.handle.destroy()
        async with anyio.create_task_group() as tasks:

            async def wait_for_fork() -> None:
                with pytest.raises(CheckpointLost) as caught:
                    await pool.acquire(from_=checkpoint)
                assert not caught.value.retryable

            tasks.start_soon(wait_for_fork)
        with pytest.raises(CheckpointLost):
            await checkpoint.sizes()
        assert pool.stats().checkpoints == 0
        await checkpoint.drop()
        async with pool.slot() as other:
            assert other.sandbox != slot.sandbox


async def test_fork_waits_for_a_slot_of_its_sandbox(pool_of: Factory) -> None:
    async with pool_of(slots_per_sandbox=2) as pool, pool.slot() as slot:
        checkpoint = await slot.checkpoint()
        other = await pool.acquire()
        with pytest.raises(AcquireTimeout, match="kept for checkpoints"):
            await pool.acquire(from_=checkpoint, timeout_s=0.3)
        dropped = await slot.checkpoint()
        async with anyio.create_task_group() as tasks:

            async def wait_for_fork() -> None:
                with pytest.raises(SlotClosed, match="dropped"):
                    await pool.acquire(from_=dropped)

            tasks.start_soon(wait_for_fork)
            await until(lambda: pool.stats().waiting == 1)
            await dropped.drop()
        await pool.release(other)
        async with pool.slot(from_=checkpoint) as fork:
            assert fork.sandbox == slot.sandbox


@pytest.mark.loops
async def test_cancelled_checkpoint_and_fork_leave_nothing(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await output(slot, LARGE)
        await slot.spawn("sleep 100")
        for delay_s in (0.0, 0.002, 0.01, 0.05, 0.2):
            with anyio.move_on_after(delay_s):
                await (await slot.checkpoint()).drop()
        await until(lambda: pool.stats().checkpoints == 0)
        assert await output(slot, "ls f* | wc -l") == "2500\n"
        checkpoint = await slot.checkpoint(processes="end")
        for delay_s in (0.0, 0.005, 0.02, 0.05):
            with anyio.move_on_after(delay_s):
                async with pool.fork(checkpoint, 3):
                    await anyio.sleep_forever()
        await until(lambda: pool.stats().slots_in_use == 1)
        async with pool.fork(checkpoint, 3) as forks:
            assert [await output(fork, "ls f* | wc -l") for fork in forks] == ["2500\n"] * 3
        assert pool.stats().slots_quarantined == 0


@pytest.mark.loops
async def test_restore_ends_calls_under_way(pool: SandboxPool) -> None:
    async with pool.slot() as slot, anyio.create_task_group() as tasks:
        checkpoint = await slot.checkpoint()

        async def run() -> None:
            with pytest.raises(SlotClosed, match="restored to a checkpoint"):
                await slot.run("touch began; sleep 60")

        tasks.start_soon(run)
        await eventually(lambda: slot.files.exists("began"))
        await slot.restore(checkpoint)
        assert await output(slot, "ls") == ""
        assert await slot.processes() == []


async def test_toolbox_continues_in_forks_and_after_a_restore(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        toolbox = tools.Toolbox(slot, ["terminal", "file"])
        await typed(toolbox, "mkdir p && cd p && V=here && echo text > a")
        read = await toolbox.call("read_file", {"path": "a"})
        checkpoint = await slot.checkpoint()
        await typed(toolbox, "cd / && V=away && rm -r /workspace/p")
        async with pool.slot(from_=checkpoint) as fork:
            copy = tools.Toolbox(fork, like=toolbox)
            assert copy.names == toolbox.names
            assert await typed(copy, "pwd; echo $V") == "/workspace/p\nhere"
            assert (await copy.call("read_file", {"path": "a"})).data != read.data, "the model has seen this text"
            await typed(copy, "V=fork")
            await fork.reset()
            assert await typed(copy, "echo $V") == "here"
        await slot.restore(checkpoint)
        assert await typed(toolbox, "pwd; echo $V") == "/workspace/p\nhere"
        await slot.reset()
        assert await typed(toolbox, "pwd; echo $V") == "/workspace"
        with pytest.raises(ConfigError, match="does not hold the state of that Toolbox"):
            tools.Toolbox(slot, like=toolbox)


async def test_checkpoints_of_another_pool_are_refused(pool_of: Factory) -> None:
    async with pool_of() as pool, pool.slot() as here:
        checkpoint = await here.checkpoint()
        async with pool_of() as other, other.slot() as stranger:
            with pytest.raises(ConfigError, match="belongs to another pool"):
                await stranger.restore(checkpoint)
            with pytest.raises(ConfigError, match="belongs to another pool"):
                await other.acquire(from_=checkpoint)


@pytest.mark.docker
async def test_slots_without_a_root_of_their_own_are_refused(docker_image: Image) -> None:
    image = docker_image("busybox")
    choices: tuple[dict[str, Any], ...] = ({}, {"slots_per_sandbox": 2, "slot_root": "shared"})
    for options in choices:
        async with SandboxPool("docker", image=image, max_sandboxes=1, **options) as pool, pool.slot() as slot:
            with pytest.raises(ConfigError, match="set slot_root='own', and slots_per_sandbox"):
                await slot.checkpoint()
            with pytest.raises(ConfigError, match="set slot_root='own', and slots_per_sandbox"):
                await pool.fork(slot, 1).__aenter__()
            assert await output(slot, "echo lives") == "lives\n"


def test_blocking_forms(pool_of: Factory) -> None:
    with pool_of() as pool, pool.slot() as slot:
        session = slot.session()
        session.run("mkdir /opt; cd /opt; echo x > y")
        toolbox = tools.Toolbox(slot)
        toolbox.call("terminal", {"command": "mkdir /srv; cd /srv"})
        with slot.checkpoint() as checkpoint:
            assert checkpoint.sessions[session.id or ""] == "/opt"
            assert checkpoint.holds == "root"
            session.run("cd /; rm /opt/y")
            slot.restore(checkpoint)
            assert session.run("pwd; cat y").stdout == "/opt\nx\n"
            with pool.slots(2, from_=checkpoint) as forks:
                assert forks[0].session(like=session).run("pwd").stdout == "/opt\n"
                copy = tools.Toolbox(forks[1], like=toolbox)
                assert str(copy.call("terminal", {"command": "pwd"}).data["output"]).strip() == "/srv"
            with pool.fork(slot, 2) as forks:
                assert [fork.run("cat /opt/y").stdout for fork in forks] == ["x\n", "x\n"]
            assert checkpoint.sizes()[0].entries > 0
        assert checkpoint.dropped
