"""`slot.reset` and what a holder leaves to the next one, where it changed more than its own directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from hermes_exec import LaunchError, SandboxPool, SlotClosed

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
DIRTY = "cp /bin/false /usr/bin/mytool; echo secret > /root/x; echo hacked >> /etc/passwd"
LOOK = "ls /usr/bin/mytool /root/x; tail -1 /etc/passwd"


@pytest.mark.loops
async def test_a_slot_that_is_a_whole_sandbox_goes_on_in_another(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("debian"), max_sandboxes=1, files={"given": b"x"}) as pool:
        async with pool.slot() as slot:
            identity, sandbox = slot.id, slot.sandbox
            for _ in range(2):
                assert (await slot.run(DIRTY)).ok
                before = await slot.spawn("sleep 100")
                await slot.reset()
                with pytest.raises(SlotClosed):
                    await before.wait()
                assert (slot.id, slot.sandbox == sandbox) == (identity, False)
                looked = await slot.run(LOOK)
                assert "mytool" not in looked.stdout
                assert "hacked" not in looked.stdout
                assert await slot.files.read_bytes("given") == b"x"
                sandbox = slot.sandbox
            assert pool.stats().slots_in_use == 1
        assert pool.stats().slots_in_use == 0


async def test_nothing_is_left_where_anybody_may_write(docker_image: Image, tmp_path: Path) -> None:
    """Neither in the image nor in memory. What is in a neighbour's directory goes with the neighbour; what is mounted
    from elsewhere is shared because somebody wants it so.
    """
    os.chmod(tmp_path, 0o777)  # all slots are to write there
    async with SandboxPool(
        "docker",
        image=docker_image("debian"),
        max_sandboxes=1,
        slots_per_sandbox=2,
        slot_root="shared",
        tmpfs={"/scratch": "size=8m,mode=1777"},
        volumes=[f"{tmp_path}:/results"],
        setup="mkdir -p /srv/deep/open && chmod 1777 /srv/deep/open",
    ) as pool:
        async with pool.slot() as one, pool.slot() as two:
            (await two.run("mkdir -p /scratch/two/open && chmod 755 /scratch/two; chmod 777 /scratch/two/open")).check()
            places = "/scratch/file /scratch/two/open/file /srv/deep/open/file /results/file"
            (await one.run(f"echo x | tee {places} && mkdir /scratch/d")).check()
            await one.reset()
            left = (await two.run("find /scratch /srv/deep/open -mindepth 1 | sort")).stdout
            assert left == "/scratch/two\n/scratch/two/open\n/scratch/two/open/file\n"
        async with pool.slot() as one, pool.slot() as two:
            assert (await one.run("find /scratch /srv/deep/open -mindepth 1")).stdout == ""
            assert (await two.run("cat /results/file")).stdout == "x\n"


async def test_a_slot_is_given_back_while_it_goes_to_another_sandbox(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("debian"), max_sandboxes=1) as pool:
        slot = await pool.acquire()
        await slot.run(DIRTY)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slot.reset)
            await anyio.sleep(0.4)
            await pool.release(slot)
        with pytest.raises(SlotClosed):
            await slot.run("true")
        async with pool.slot() as other:
            assert (await other.run("true")).ok
        assert pool.stats().slots_in_use == 0


async def test_a_reset_that_is_cancelled_while_it_waits_for_a_sandbox_closes_the_slot(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("debian"), max_sandboxes=1) as pool:
        async with pool.slot() as slot:
            await slot.run(DIRTY)
            with anyio.move_on_after(0.5) as scope:
                await slot.reset()
            if scope.cancelled_caught:
                with pytest.raises(SlotClosed, match="another sandbox"):
                    await slot.run("true")
        async with pool.slot() as other:
            assert "hacked" not in (await other.run(LOOK)).stdout


async def test_there_is_no_other_sandbox(docker_image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SandboxPool("docker", image=docker_image("debian"), max_sandboxes=1) as pool, pool.slot() as slot:
        await slot.run(DIRTY)

        async def refuse(*_: object) -> None:
            raise LaunchError("no more sandboxes today", retryable=False)

        monkeypatch.setattr("hermes_exec.backends.docker.backend.DockerBackend.launch", refuse)
        with pytest.raises(LaunchError, match="no more sandboxes"):
            await slot.reset()
        with pytest.raises(SlotClosed, match="no more sandboxes"):
            await slot.run("true")


async def test_system_v_objects_do_not_outlive_a_acquire(docker_image: Image) -> None:
    make = "ipcmk -M 4096 && ipcmk -Q && ipcmk -S 3"
    image = docker_image("debian")
    async with (
        SandboxPool("docker", image=image, slots_per_sandbox=2, max_sandboxes=1, slot_root="shared") as pool,
        pool.slot() as neighbour,
    ):
        for _ in range(2):
            async with pool.slot() as slot:
                made = await slot.run(make)
                assert made.ok, made.output
        listed = await neighbour.run("cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem")
        assert len(listed.stdout.splitlines()) == 3, listed.stdout
        assert pool.stats().slots_quarantined == 0


async def test_a_tenant_that_stops_everything_does_not_stop_its_slot(docker_image: Image) -> None:
    """Only where the sandbox is a container of its own: root signals what is in its pid namespace."""
    async with SandboxPool("docker", image=docker_image("debian")) as pool, pool.slot() as slot:
        assert slot.isolation.level == "exclusive"
        for _ in range(3):
            result = await slot.run("kill -STOP -1; echo after", timeout_s=20)
            assert result.stdout == "after\n"
            with anyio.fail_after(30):
                await slot.files.write_text("f", "x")
                assert (await slot.run("cat f")).stdout == "x"
