"""Services of a checkpoint (`on_fork`): they start again in each fork, after a restore and after a fork's reset."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from hermes_exec import AcquireTimeout, ConfigError, ErrorCause, LaunchError, SandboxPool, Slot

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
SERVE = (
    "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & "
    "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.05; done"
)
FETCH = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000/note\").read().decode())'"


@pytest.fixture
async def pool(anyio_backend: str, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    image = docker_image("debian")
    async with SandboxPool(
        "docker", image=image, max_sandboxes=1, slots_per_sandbox=3, slot_root="own", network=False
    ) as made:
        yield made


async def fetch(slot: Slot) -> str:
    return (await slot.run(FETCH)).stdout.strip()


async def test_services_start_in_forks_and_after_a_restore(pool: SandboxPool) -> None:
    async with pool.slot(workdir="/srv") as slot:
        await slot.run("echo prepared > note", check=True)
        checkpoint = await slot.checkpoint(on_fork=SERVE)
        assert checkpoint.on_fork == (SERVE,)
        assert await fetch(slot) == "", "the slot of the checkpoint runs what it ran before"
        async with pool.slots(2, from_=checkpoint) as forks:
            for number, fork in enumerate(forks):
                assert await fetch(fork) == "prepared"
                await fork.run(f"echo {number} > note", check=True)
            assert [await fetch(fork) for fork in forks] == ["0", "1"], "each fork has a server of its own"
            await slot.restore(checkpoint)
            assert await fetch(slot) == "prepared"
            await checkpoint.drop()
            await forks[0].reset()
            assert await fetch(forks[0]) == "prepared"
    async with pool.slots(3) as slots:
        assert [await slot.processes() for slot in slots] == [[]] * 3
        assert [await fetch(slot) for slot in slots] == [""] * 3


async def test_later_checkpoint_of_a_fork_has_its_own_services(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        first = await slot.checkpoint(on_fork=["echo 1 >> started", "echo 2 >> started"])
        async with pool.slot(from_=first) as fork:
            second = await fork.checkpoint()
            async with pool.slot(from_=second) as grandchild:
                assert (await grandchild.run("cat started")).stdout == "1\n2\n"


async def test_service_that_fails_leaves_no_fork_and_closes_a_restored_slot(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        checkpoint = await slot.checkpoint(on_fork=["true", "echo no such database; exit 3"])
        with pytest.raises(LaunchError, match=r"on_fork: .* failed with exit code 3: no such database") as raised:
            await pool.acquire(from_=checkpoint)
        assert (raised.value.cause, raised.value.retryable) == (ErrorCause.TASK, False)
        assert (await slot.run("echo alive")).stdout == "alive\n"
        with pytest.raises(LaunchError, match="exit code 3") as raised:
            await slot.restore(checkpoint)
        assert raised.value.cause is ErrorCause.TASK
        assert slot.closed
    async with pool.slots(3):
        assert pool.stats().slots_quarantined == 0


async def test_service_that_cannot_start_leaves_no_fork_and_closes_a_restored_slot(pool: SandboxPool) -> None:
    """A slot whose workspace is no directory can have checkpoints, but no command starts there."""
    async with pool.slot() as slot:
        await slot.run("rm -r /workspace; touch /workspace", cwd="/", check=True)
        checkpoint = await slot.checkpoint(on_fork="true")
        for count in (1, 2):
            with pytest.raises(LaunchError, match=r"on_fork: 'true' could not start: .*not a directory") as raised:
                async with pool.slots(count, from_=checkpoint):
                    pass
            assert (raised.value.cause, raised.value.retryable) == (ErrorCause.TASK, False)
        with pytest.raises(LaunchError, match="could not start"):
            await slot.restore(checkpoint)
        assert slot.closed
    async with pool.slots(3):
        assert pool.stats().slots_quarantined == 0


async def test_service_that_never_returns_is_named_by_the_timeout(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        checkpoint = await slot.checkpoint(on_fork="sleep 1000")
        with pytest.raises(AcquireTimeout, match="its on_fork 'sleep 1000' had not ended"):
            await pool.acquire(from_=checkpoint, timeout_s=2)
    async with pool.slots(3) as slots:
        assert [await each.processes() for each in slots] == [[]] * 3


@pytest.mark.parametrize("on_fork", ["", ["true", ""], "a\0b", [b"true"], 3])
async def test_invalid_services_are_refused(pool: SandboxPool, on_fork: object) -> None:
    async with pool.slot() as slot:
        with pytest.raises(ConfigError, match="on_fork must be a command or a list of commands"):
            await slot.checkpoint(on_fork=on_fork)  # type: ignore[arg-type]
        assert pool.stats().checkpoints == 0


async def test_checkpoint_tells_whether_its_changes_were_copied(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        assert (await slot.checkpoint()).copied
        await slot.run("head -c 20000000 /dev/zero > big", check=True)
        frozen = await slot.checkpoint()
        assert not frozen.copied
        await slot.run("head -c 20000000 /dev/zero > other", check=True)
        process = await slot.spawn("sleep 1000")
        assert (await slot.checkpoint()).copied
        await process.kill()
