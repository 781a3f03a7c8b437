"""A limit that a tenant has used up is its result, on every face; what others have used up is infrastructure."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from hermes_exec import ErrorCause, ExecError, SandboxPool, Slot

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a limit of processes on local needs cgroups or uids")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "namespaces": ("local", {"slot_limits": {"pids": 20}}),
    "uid": ("docker", {"slot_limits": {"pids": 20}, "slots_per_sandbox": 2, "slot_root": "shared"}),
    "uid-open-files": (
        "docker",
        {"slot_limits": {"pids": 20, "open_files": 64}, "slots_per_sandbox": 2, "slot_root": "shared"},
    ),
    "shared-sandbox": ("docker", {"limits": {"pids": 60}, "slots_per_sandbox": 2}),
    "sandbox": ("docker", {"limits": {"pids": 60}}),
}


def case(name: str, docker_image: Image) -> tuple[str, dict[str, Any]]:
    backend, options = CASES[name]
    return backend, {**options, "image": docker_image("busybox")} if backend == "docker" else options


async def filled(slot: Slot) -> int:
    """Start processes until there is no room for one more, and say how many it took."""
    for started in range(500):
        process = await slot.spawn(["sleep", "1000"])
        try:
            ended = await process.wait(0)
        except TimeoutError:
            continue
        assert ended.exit_code == 126
        return started
    raise AssertionError("the limit does not hold")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("namespaces", marks=needs_root),
        *(pytest.param(name, marks=pytest.mark.docker) for name in CASES if name != "namespaces"),
    ],
)
async def test_processes_that_a_tenant_used_up_are_its_result(name: str, docker_image: Image) -> None:
    backend, options = case(name, docker_image)
    async with SandboxPool(backend, **options) as pool, pool.slot() as slot:
        session = slot.session()
        await session.run("kept=yes")
        assert await filled(slot) > 10
        for result in (await slot.run("echo hi"), await slot.run(["true"]), await session.run("kept=no")):
            assert (result.exit_code, result.stdout, result.signal) == (126, "", None)
            assert "cannot fork" in result.stderr
            assert "processes" in result.stderr
        terminal = await slot.spawn("echo hi", pty=True)
        assert (await terminal.wait(30)).exit_code == 126
        assert b"cannot fork" in (await terminal.output())[0]
        await slot.files.write_text("file", "files need no process")
        assert (await slot.files.search("no process")).total == 1
        assert (await slot.kill_all()).left == 0
        assert (await session.run("echo $kept")).stdout == "yes\n"


@pytest.mark.docker
async def test_processes_that_a_neighbour_used_up_are_infrastructure(docker_image: Image) -> None:
    backend, options = case("shared-sandbox", docker_image)
    options["slots_per_sandbox"] = 3
    async with SandboxPool(backend, max_sandboxes=1, **options) as pool, pool.slots(3) as (greedy, busy, idle):
        await busy.run("true")
        for slot in (busy, idle):
            await filled(greedy)  # again: an agent that ends, or ends a thread, leaves room
            with pytest.raises(ExecError, match=r"process|agent (cannot be started|did not get ready)") as caught:
                await slot.run("true")
            assert (type(caught.value), caught.value.cause, caught.value.retryable) == (
                ExecError,
                ErrorCause.INFRA,
                True,
            )
        await filled(greedy)  # its own commands have results
        assert (await greedy.kill_all()).left == 0
        assert (await busy.run("echo on")).stdout == (await idle.run("echo on")).stdout == "on\n"


@pytest.mark.docker
@pytest.mark.parametrize("slots", [1, 6])
async def test_the_least_limits_of_a_container_leave_room_for_a_command_in_each_slot(
    slots: int, docker_image: Image
) -> None:
    limits = {"pids": 3} if slots > 1 else {"pids": 3, "memory_mb": 8}
    options: dict[str, Any] = {"image": docker_image("busybox"), "slots_per_sandbox": slots, "max_sandboxes": 1}
    async with SandboxPool("docker", limits=limits, **options) as pool, pool.slots(slots) as acquired:
        for slot in acquired:
            assert (await slot.run("echo there | cat")).stdout == "there\n"


CAPABLE = """
import os, shutil, struct
shutil.copy("/bin/true", "/capable")
os.setxattr("/capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
"""


@pytest.mark.docker
async def test_a_program_that_the_system_refuses_to_run_is_a_result(docker_image: Image) -> None:
    """Its file asks for a capability that nothing in the sandbox can have, which is EPERM."""
    async with SandboxPool("docker", image=docker_image("debian")) as pool, pool.slot() as slot:
        await slot.run(["python3", "-c", CAPABLE], check=True)
        result = await slot.run(["/capable"])
        assert (result.exit_code, result.stderr) == (126, "/capable: operation not permitted\n")
