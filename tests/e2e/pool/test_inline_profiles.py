"""Inline profiles: which settings belong to the slot, and which requests share sandboxes."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from pydantic import SecretStr

from hermes_exec import ConfigError, Limits, ProfileConfig, SandboxPool

pytestmark = pytest.mark.anyio
LOOK = "echo $WHO-$KEPT-$TOKEN; cat own 2>/dev/null; cat set-up 2>/dev/null; pwd"


def row(number: int, **more: object) -> ProfileConfig:
    return ProfileConfig(
        env={"WHO": f"row{number}"},
        secrets={"TOKEN": SecretStr(f"secret-of-row-{number}")},
        files={"own": f"file{number}\n".encode()},
        slot_setup=f"echo setup{number} > set-up",
        workdir=f"/tmp/row{number}",
        **more,
    )


async def test_rows_with_own_variables_and_files_share_a_sandbox() -> None:
    async with SandboxPool("local", slots_per_sandbox=2, env={"WHO": "pool", "KEPT": "yes"}) as pool:
        for number in range(6):
            async with pool.slot(profile=row(number)) as slot, pool.slot() as plain:
                expected = f"row{number}-yes-secret-of-row-{number}\nfile{number}\nsetup{number}\n/tmp/row{number}\n"
                assert (await slot.run(LOOK)).stdout == expected
                await slot.reset()
                assert (await slot.run(LOOK)).stdout == expected
                assert (await plain.run("echo $WHO-$KEPT-$TOKEN; ls")).stdout == "pool-yes-\n"
            assert pool.mask(f"a secret-of-row-{number}") == "a ***"
        async with pool.slots(2, profile=row(7)) as slots:
            assert [(await slot.run("echo $WHO")).stdout for slot in slots] == ["row7\n"] * 2
        assert pool.stats().launches == 1


async def test_equal_profiles_share_sandboxes_and_others_do_not() -> None:
    named = {"few": {"slot_limits": {"open_files": 77}}}
    async with SandboxPool("local", slots_per_sandbox=4, max_sandboxes=2, profiles=named) as pool:
        few = ProfileConfig(slot_limits=Limits(open_files=77), env={"A": "b"})
        async with pool.slot() as one, pool.slot(few) as two, pool.slot("few") as three, pool.slot(few) as four:
            assert two.sandbox == three.sandbox == four.sandbox != one.sandbox
            assert (await two.run("ulimit -n; echo $A")).stdout == "77\nb\n"
            assert (await three.run("ulimit -n; echo $A")).stdout == "77\n\n"
        assert pool.stats().launches == 2
        with pytest.raises(ConfigError, match="has no images"):
            await pool.acquire(profile=ProfileConfig(image="debian"))


async def test_profiles_in_a_row_end_as_idle_sandboxes_and_are_forgotten() -> None:
    async with SandboxPool("local", max_sandboxes=1) as pool:
        for number in range(70):
            async with pool.slot(ProfileConfig(runner_memory_mb=16 + number)) as slot:
                assert (await slot.run("true")).ok
        assert pool._running is not None
        assert len(pool._running.fleet.state.uses) <= 66
        assert len(pool._templates.all) <= 66


async def test_request_that_is_cancelled_while_a_slot_gets_its_variables_leaves_the_slot_usable() -> None:
    async with SandboxPool("local", slots_per_sandbox=1) as pool:
        async with pool.slot() as slot:
            assert (await slot.run("true")).ok
        for number in range(30):
            with anyio.move_on_after(number / 2000):
                await pool.release(await pool.acquire(ProfileConfig(env={"A": str(number)})))
            async with pool.slot() as slot:
                assert (await slot.run("echo $A")).stdout == "\n"
        assert pool.stats().launches == 1


@pytest.mark.docker
@pytest.mark.parametrize("slots_per_sandbox", [1, 2])
async def test_inline_profile_on_docker(docker_image: Callable[[str], str], slots_per_sandbox: int) -> None:
    small, large = docker_image("busybox"), docker_image("debian")
    async with SandboxPool(
        "docker", image=small, slots_per_sandbox=slots_per_sandbox, max_sandboxes=3, env={"KEPT": "yes"}
    ) as pool:
        async with pool.slot(profile=row(1)) as slot:
            assert slot.image == small
            assert (await slot.run(LOOK)).stdout == "row1-yes-secret-of-row-1\nfile1\nsetup1\n/tmp/row1\n"
        large_row = row(2, image=large, limits=Limits(memory_mb=256), network=False)
        async with pool.slot(profile=large_row) as slot:
            assert slot.image == large
            assert slot.isolation.limits["memory_mb"] == "cgroup of the container"
            assert (await slot.run("ls /sys/class/net; echo $WHO")).stdout == "lo\nrow2\n"
            await slot.reset()
            assert (await slot.run("echo $WHO; cat own")).stdout == "row2\nfile2\n"
        async with pool.slot() as slot:
            assert (await slot.run("echo $WHO-$KEPT-$TOKEN")).stdout == "-yes-\n"
