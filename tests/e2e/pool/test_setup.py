"""`setup` and `slot_setup`: what they make is there for each tenant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import docker
import pytest

from hermes_exec import AcquireTimeout, ConfigError, LaunchError, SandboxPool

pytestmark = [pytest.mark.anyio]
Image = Callable[[str], str]
SETUP = [
    "mkdir -p /opt/tool /usr/local/bin; printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool",
    "chmod 755 /usr/local/bin/tool; echo data > /opt/tool/data; echo shared > /tmp/shared; echo $HOME > /opt/home",
]


@pytest.mark.docker
@pytest.mark.parametrize("options", [{}, {"user": "1000"}], ids=["root", "user"])
async def test_each_whole_sandbox_has_what_setup_made_and_nothing_of_a_tenant(
    docker_image: Image, options: dict[str, Any]
) -> None:
    setup = SETUP if not options else "echo shared > /tmp/shared"
    async with SandboxPool("docker", image=docker_image("busybox"), max_sandboxes=1, setup=setup, **options) as pool:
        for _ in range(2):
            async with pool.slot() as slot:
                assert slot.isolation.level == "exclusive"
                told = await slot.run("cat /tmp/shared; ls -A . /tmp; echo x > mine; echo y > /tmp/shared")
                assert told.stdout.split() == ["shared", ".:", "/tmp:", "shared"]
                if not options:
                    assert (await slot.run("/usr/local/bin/tool; cat /opt/tool/data")).stdout == "tool\ndata\n"
                    assert (await slot.run("cat /opt/home; rm -r /opt/tool")).stdout == "/root\n"
        assert pool.stats().launches == 2


@pytest.mark.docker
async def test_a_volume_of_the_image_is_not_handed_to_the_next_tenant(docker_image: Image) -> None:
    tag, busybox = "hermes-exec-test/volume:1", docker_image("busybox")
    with contextlib.closing(docker.from_env()) as client:
        made = client.containers.create(busybox)
        made.commit("hermes-exec-test/volume", "1", changes="VOLUME /data")
        made.remove()
        try:
            async with SandboxPool("docker", image=tag, max_sandboxes=1) as pool:
                async with pool.slot() as slot:
                    (await slot.run("echo mine > /data/left")).check()
                async with pool.slot(timeout_s=60) as slot:
                    assert (await slot.run("ls -A /data")).stdout == ""
        finally:
            client.images.remove(tag, force=True)


@pytest.mark.docker
async def test_setup_runs_once_a_sandbox_with_its_rights_and_slot_setup_at_each_acquire(docker_image: Image) -> None:
    async with SandboxPool(
        "docker",
        image=docker_image("busybox"),
        slots_per_sandbox=4,
        max_sandboxes=1,
        setup=[*SETUP, "echo x >> /opt/count; id -u > /opt/who"],
        slot_setup=["cat /opt/tool/data > given", "echo lend >> $HOME/lends"],
    ) as pool:
        for _ in range(2):
            async with pool.slots(4) as slots, anyio.create_task_group() as tasks:

                async def look(index: int) -> None:
                    told = await slots[index].run(
                        "/usr/local/bin/tool; cat given $HOME/lends /opt/count /opt/who; id -u"
                    )
                    assert told.stdout.split() == ["tool", "data", "lend", "x", "0", "0"]
                    assert (await slots[index].run("echo x > /opt/tool/data")).ok

                for index in range(4):
                    tasks.start_soon(look, index)
        assert pool.stats().launches == 1


@pytest.mark.docker
async def test_a_profile_has_a_setup_of_its_own(docker_image: Image) -> None:
    profiles: dict[str, dict[str, Any]] = {"tool": {"setup": SETUP}, "bare": {"slot_setup": "echo lent > given"}}
    async with SandboxPool("docker", image=docker_image("busybox"), profiles=profiles) as pool:
        async with pool.slot("tool") as slot:
            assert (await slot.run("/usr/local/bin/tool; ls given")).stdout == "tool\n"
        async with pool.slot("bare") as slot:
            assert (await slot.run("/usr/local/bin/tool; cat given")).stdout == "lent\n"


@pytest.mark.docker
async def test_a_failing_setup_leaves_no_container(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), setup="echo because; exit 3") as pool:
        with pytest.raises(LaunchError, match="because"):
            await pool.acquire()
        run_id = pool.run_id
    with contextlib.closing(docker.from_env()) as client:
        assert client.containers.list(all=True, filters={"label": f"hermes-exec.run-id={run_id}"}) == []


@pytest.mark.loops
@pytest.mark.parametrize("setup", ["echo x > made", "mkdir $HOME/made"])
async def test_setup_that_makes_files_where_a_sandbox_is_this_machine_is_refused(setup: str) -> None:
    async with SandboxPool("local", setup=setup) as pool:
        with pytest.raises(ConfigError, match=r"created 'made' in .*use slot_setup"):
            await pool.acquire(timeout_s=20)
        assert pool.stats().failures == 1


@pytest.mark.loops
async def test_setup_that_only_looks_runs_once_where_a_sandbox_is_this_machine() -> None:
    async with SandboxPool("local", setup=["ls /usr >/dev/null", "sleep 1000 & true"]) as pool:
        for _ in range(2):
            async with pool.slot() as slot:
                assert await slot.files.list(".") == []
                assert not [process for process in await slot.processes() if "sleep" in process.argv]
        assert pool.stats().launches == 1


@pytest.mark.loops
async def test_a_slot_setup_that_hangs_is_told_as_what_nobody_got_a_slot_for() -> None:
    setup = ["true", "test -e go || exec sleep $TOKEN"]
    async with SandboxPool("local", slots_per_sandbox=1, slot_setup=setup, secrets={"TOKEN": "1000"}) as pool:
        await pool.prewarm(1)
        with pytest.raises(AcquireTimeout, match=r"a slot was free, but its slot_setup '.*exec sleep.*' had not ended"):
            await pool.acquire(timeout_s=5)
    async with SandboxPool("local", slots_per_sandbox=1, slot_setup="true") as pool, pool.slot():
        with pytest.raises(AcquireTimeout, match="which has 1 in use"):
            await pool.acquire(timeout_s=0.1)
