"""SSH between hosts: links that are cut, slow and far in mid-command, two hosts, and drivers on cloned machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from hermes_exec import BackendUnavailable, OutcomeUnknown, SandboxPool, Slot
from tests.e2e.backends.sandboxes import left
from tests.support.directories import let_others_pass
from tests.support.links import far_port
from tests.support.remote_hosts import RemoteHost, missing, remote_host
from tests.support.sshd import Server
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
COUNT = "for i in $(seq 60); do echo $i; sleep 0.1; done"
COUNTED = "".join(f"{i}\n" for i in range(1, 61))


@pytest.fixture(scope="module")
def hosts(ssh_server: Server) -> Iterator[list[RemoteHost]]:
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:
        yield [stack.enter_context(remote_host(number)) for number in (1, 2)]


@pytest.fixture(params=["openssh", "paramiko"])
def options(request: pytest.FixtureRequest, hosts: list[RemoteHost], tmp_path: Path) -> dict[str, Any]:
    let_others_pass(tmp_path)
    more = {"transport": request.param, "base_dir": str(tmp_path), "connect_timeout_s": 10}
    return hosts[0].server.options(**more)


async def test_a_link_that_is_cut_for_a_while_loses_nothing(
    options: dict[str, Any], hosts: list[RemoteHost], tmp_path: Path
) -> None:
    async with SandboxPool("ssh", **options, lease_s=60) as pool, pool.slot() as slot:
        seen: list[str] = []

        async def count() -> None:
            seen.append((await slot.run(f"echo ran >> {slot.workspace}/log; {COUNT}", timeout_s=90)).stdout)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await anyio.sleep(1)
            await to_thread.run_sync(hosts[0].cut)
            await anyio.sleep(9)
            await to_thread.run_sync(hosts[0].mend)
        assert seen == [COUNTED]
        assert await slot.files.read_text("log") == "ran\n"
    assert left(tmp_path) == []


@pytest.mark.whole
async def test_a_link_that_stays_cut_is_told_in_time(
    options: dict[str, Any], hosts: list[RemoteHost], tmp_path: Path
) -> None:
    async def lost(slot: Slot) -> None:
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await slot.run("sleep 60")
        assert time.monotonic() - began < 45

    pool = SandboxPool("ssh", **options | {"connect_timeout_s": 6}, lease_s=6, shutdown_timeout_s=5)
    try:
        async with pool, pool.slot() as slot, anyio.create_task_group() as tasks:
            tasks.start_soon(lost, slot)
            await anyio.sleep(1)
            await to_thread.run_sync(hosts[0].cut)
    finally:
        hosts[0].mend()
    await until(lambda: left(tmp_path) == [])  # the lease ends it


async def test_a_throttled_link_carries_files_and_calls(options: dict[str, Any], hosts: list[RemoteHost]) -> None:
    data = os.urandom(4 << 20)
    hosts[0].throttle(mbit_per_s=20)
    async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slot.files.write_bytes, "large", data)
            for _ in range(5):
                assert (await slot.run("echo between", timeout_s=30)).stdout == "between\n"
        assert await slot.files.read_bytes("large") == data


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
async def test_a_host_that_is_far_away(transport: str, ssh_server: Server, tmp_path: Path) -> None:
    with far_port(ssh_server.port, one_way_s=0.15) as port:
        options = ssh_server.options(transport=transport, hosts=f"{ssh_server.user}@127.0.0.1:{port}")
        known = tmp_path / "known_hosts"
        known.write_text(ssh_server.known_hosts.replace(f":{ssh_server.port} ", f":{port} "))
        async with SandboxPool("ssh", **options | {"known_hosts": str(known)}) as pool, pool.slot() as slot:
            result = await slot.run("cat; echo end >&2; exit 3", stdin="over a long way")
            assert (result.stdout, result.stderr, result.exit_code) == ("over a long way", "end\n", 3)
            assert (await slot.run("sleep 60", timeout_s=0.5)).timed_out
            data = os.urandom(4 << 20)
            await slot.files.write_bytes("large", data)
            assert await slot.files.read_bytes("large") == data


async def test_a_host_that_is_away_does_not_hide_the_other(
    options: dict[str, Any], hosts: list[RemoteHost], tmp_path: Path
) -> None:
    two = {**options, "hosts": [host.server.options()["hosts"] for host in hosts]}
    known = tmp_path / "known_hosts"
    known.write_text("".join(host.server.known_hosts for host in hosts))
    two["known_hosts"] = str(known)
    other = hosts[1].server.directory / "authorized_keys"
    other.write_text(other.read_text() + (hosts[0].server.directory / "authorized_keys").read_text())
    async with SandboxPool("ssh", **two, slots_per_sandbox=1, max_sandboxes=2) as pool, pool.slots(2) as slots:
        namespaces = {(await slot.run("readlink /proc/self/ns/net")).stdout for slot in slots}
        assert len(namespaces) == 2
    hosts[1].cut()
    try:
        with pytest.raises(BackendUnavailable, match="does not answer"):
            async with SandboxPool("ssh", **{**options, **hosts[1].server.options(), "connect_timeout_s": 3}):
                pass
        async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
            assert (await slot.run("echo here")).stdout == "here\n"
    finally:
        hosts[1].mend()


CLONE = """
import sys
from hermes_exec import SandboxPool
with SandboxPool("ssh", **eval(sys.argv[1])) as pool, pool.slot() as slot:
    print(slot.run("echo worked").stdout, flush=True)
"""


async def test_drivers_on_cloned_hosts_leave_each_others_sandboxes(options: dict[str, Any], tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("00000000-1111-2222-3333-444444444444\n")
    script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", CLONE, repr(options)]
    async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        done = await to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
        assert (done.stdout, done.returncode) == ("worked\n\n", 0), done.stderr
        assert (await slot.run("echo still here")).stdout == "still here\n"
