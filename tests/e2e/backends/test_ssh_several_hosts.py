"""Several hosts in one SSH backend: where sandboxes go, and what becomes of hosts that are away, die and come back."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from hermes_exec import BackendUnavailable, ChannelLost, ConfigError, OutcomeUnknown, SandboxDied, SandboxPool, Slot
from hermes_exec.backends.base import ReapFilter
from hermes_exec.backends.registry import make_backend
from hermes_exec.errors import ErrorCause
from tests.e2e.backends.sandboxes import left
from tests.support.directories import let_others_pass
from tests.support.sshd import Server, server
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
SILENT_S = 5.0
"""How long a silent host is waited for; the others must have answered by then."""
SLACK_S = 20.0


class Fleet:
    """Servers with a directory of their own each, as if they were on different hosts."""

    def __init__(self, servers: list[Server], directories: list[Path]) -> None:
        self.servers = servers
        self.directories = directories
        self.names = [f"{each.user}@{each.address}:{each.port}" for each in servers]

    def options(self, *hosts: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Options for a backend with so many of them, and with these values for each."""
        servers = self.servers[: len(hosts)]
        named = [
            {"host": each.address, "port": each.port, "user": each.user, **host}
            for each, host in zip(servers, hosts, strict=True)
        ]
        return self.servers[0].options(**{"hosts": named, "connect_timeout_s": 10, **more})

    def of(self, slot: Slot) -> int:
        """The number of the host that a slot is on."""
        return self.names.index(str(slot.sandbox).rpartition(":")[0])

    def kill(self, number: int) -> None:
        """Nothing of this host lives any more."""
        self.servers[number].stop()
        for told in self.directories[number].glob("*/runner.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(told.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def fleet(ssh_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    let_others_pass(tmp_path)
    directories = [tmp_path / name for name in ("a", "b", "c")]
    with ExitStack() as stack:
        servers = []
        for directory in directories:
            directory.mkdir(mode=0o711)
            # An inner shell reads no start-up files: those of a machine may wait for what a killed server left.
            servers.append(stack.enter_context(server(settings=f"SetEnv TMPDIR={directory} SHLVL=2")))
        for other in servers[1:]:
            (other.directory / "authorized_keys").write_text((servers[0].directory / "key.pub").read_text())
        (servers[0].directory / "known_hosts").write_text("".join(each.known_hosts for each in servers))
        yield Fleet(servers, directories)


@contextlib.contextmanager
def silenced(server: Server) -> Iterator[None]:
    """A host takes connections and says nothing."""
    server.stop()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deaf.bind((server.address, server.port))
        deaf.listen()
        yield


@pytest.fixture
def silent(fleet: Fleet) -> Iterator[None]:
    """The first host is silent."""
    with silenced(fleet.servers[0]):
        yield


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "hermes_exec.backends.ssh.hosts" and record.levelno >= logging.WARNING
    ]


async def test_sandboxes_go_where_the_most_weight_is_free(fleet: Fleet) -> None:
    options = fleet.options({"weight": 3}, {"weight": 1.5}, {}, slots_per_sandbox=1, max_sandboxes=6)
    async with SandboxPool("ssh", **options) as pool, pool.slots(6) as slots:
        assert Counter(map(fleet.of, slots)) == {0: 3, 1: 2, 2: 1}


async def test_each_host_has_the_slots_that_it_says(fleet: Fleet) -> None:
    options = fleet.options({"slots": 3}, {"slots": 1}, {}, slots_per_sandbox=2)
    async with SandboxPool("ssh", **options) as pool:
        assert pool.stats().slots_most == 6
        with pytest.raises(
            ConfigError, match=r"at most 6 .*\(slots in a sandbox: 1 or 2 or 3, sandboxes: 3\): set max_sandb"
        ):
            async with pool.slots(7):
                pass
        async with pool.slots(6) as slots:
            assert Counter(map(fleet.of, slots)) == {0: 3, 1: 1, 2: 2}
            assert [(await slot.run("echo here")).stdout for slot in slots] == ["here\n"] * 6
        assert pool.stats().slots_total == 6


async def test_workers_of_a_batch_are_spread_evenly_over_hosts(fleet: Fleet) -> None:
    where: Counter[int] = Counter()
    first: Counter[int] = Counter()
    prompts = iter(range(36))
    all_have_slots = anyio.Event()

    async def work() -> None:
        for prompt in prompts:
            async with pool.slot() as slot:
                where[fleet.of(slot)] += 1
                if prompt < 12:
                    first[fleet.of(slot)] += 1
                    if first.total() == 12:
                        all_have_slots.set()
                    await all_have_slots.wait()
                assert (await slot.run("sleep 0.1; echo done")).stdout == "done\n"

    async with SandboxPool("ssh", **fleet.options({}, {}, {})) as pool, anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(work)
    assert first == {0: 4, 1: 4, 2: 4}
    assert min(where[host] for host in range(3)) >= 8, where


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
async def test_a_host_that_is_silent_at_the_start(
    fleet: Fleet, silent: None, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    options = fleet.options({}, {}, slots_per_sandbox=1, transport=transport, connect_timeout_s=SILENT_S)
    async with SandboxPool("ssh", **options) as pool, pool.slots(2) as slots:
        assert list(map(fleet.of, slots)) == [1, 1]
    assert time.monotonic() - began < SILENT_S + SLACK_S
    (line,) = told(caplog)
    assert line.startswith(f"{fleet.names[0]} is left out until it answers again: ssh {fleet.names[0]}: ")


@pytest.mark.loops
@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
async def test_a_host_that_refuses_at_the_start_and_comes_later(
    fleet: Fleet, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.servers[0].stop()
    options = fleet.options({}, {}, slots_per_sandbox=1, transport=transport)
    async with SandboxPool("ssh", **options, idle_timeout_s=0.1) as pool, pool.slot() as first:
        assert fleet.of(first) == 1
        (line,) = told(caplog)
        assert "no SSH server listens there" in line
        await to_thread.run_sync(fleet.servers[0].start)
        with anyio.fail_after(60):
            where = 1
            while where == 1:
                async with pool.slot() as second:
                    where = fleet.of(second)
                await until(lambda: pool.stats().slots_total == 1)
        assert told(caplog)[1:] == [f"{fleet.names[0]} is back"]


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
async def test_launches_wait_together_for_a_host_that_has_gone_silent(fleet: Fleet, transport: str) -> None:
    sandboxes = {"slots_per_sandbox": 1, "max_sandboxes": 6, "launches_at_once": 6}
    options = fleet.options({"weight": 100}, {}, **sandboxes, transport=transport, connect_timeout_s=SILENT_S)
    async with SandboxPool("ssh", **options) as pool:
        with silenced(fleet.servers[0]):
            began = time.monotonic()
            async with pool.slots(6) as slots:
                assert list(map(fleet.of, slots)) == [1] * 6
            assert time.monotonic() - began < 5 * SILENT_S, "they waited for each other's attempt"


async def test_a_host_that_dies_takes_its_holders_and_no_waiter(fleet: Fleet) -> None:
    options = fleet.options({}, {}, slots_per_sandbox=1, lease_s=6)
    async with SandboxPool("ssh", **options) as pool:
        held = [await pool.acquire() for _ in range(2)]
        (dying,) = [slot for slot in held if fleet.of(slot) == 0]
        (living,) = [slot for slot in held if fleet.of(slot) == 1]

        process = await dying.spawn("sleep 100")

        async def hold() -> None:
            with pytest.raises((SandboxDied, ChannelLost, OutcomeUnknown)):
                await process.wait()
            with pytest.raises((SandboxDied, ChannelLost)):
                await dying.run("true")

        with anyio.fail_after(90):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                await to_thread.run_sync(fleet.kill, 0)
                async with pool.slot() as slot:
                    assert fleet.of(slot) == 1
                    assert (await slot.run("echo elsewhere")).stdout == "elsewhere\n"
        assert (await living.run("echo here")).stdout == "here\n"


async def test_no_pool_is_entered_when_all_are_away(fleet: Fleet, silent: None) -> None:
    fleet.servers[1].stop()
    began = time.monotonic()
    with pytest.raises(BackendUnavailable) as caught:
        async with SandboxPool("ssh", **fleet.options({}, {}, connect_timeout_s=SILENT_S)):
            pass
    assert time.monotonic() - began < SILENT_S + SLACK_S
    assert caught.value.retryable
    first, second = str(caught.value).split("; ")
    assert first.startswith(f"ssh {fleet.names[0]}: it does not answer")
    assert second.startswith(f"ssh {fleet.names[1]}: no SSH server listens there")


@pytest.mark.whole
async def test_who_waits_while_all_are_away_is_served_by_the_first_that_is_back(fleet: Fleet) -> None:
    options = fleet.options({}, {}, slots_per_sandbox=1)
    async with SandboxPool("ssh", **options) as pool:
        for number in (0, 1):
            await to_thread.run_sync(fleet.servers[number].stop)
        with pytest.raises(BackendUnavailable) as caught:
            await pool.acquire(timeout_s=5)
        assert all(f"ssh {name}: no SSH server listens there" in str(caught.value) for name in fleet.names[:2])
        assert (caught.value.retryable, caught.value.cause) == (True, ErrorCause.INFRA)
        where: list[int] = []

        async def wait() -> None:
            async with pool.slot() as slot:
                where.append(fleet.of(slot))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pool.stats().failures > 4)
            assert where == []
            await to_thread.run_sync(fleet.servers[1].start)
        assert where == [1]


@pytest.mark.whole
async def test_a_gang_for_the_larger_host_is_acquired_once_that_is_back(fleet: Fleet) -> None:
    fleet.servers[0].stop()
    options = fleet.options({"slots": 3}, {"slots": 1})
    async with SandboxPool("ssh", **options) as pool:
        async with pool.slots(2) as slots:
            assert list(map(fleet.of, slots)) == [1, 1]
        await to_thread.run_sync(fleet.servers[0].start)
        async with pool.slots(4) as slots:
            assert Counter(map(fleet.of, slots)) == {0: 3, 1: 1}


@pytest.mark.whole
async def test_sandboxes_are_found_and_ended_on_hosts_that_are_there(
    fleet: Fleet, silent: None, tmp_path: Path
) -> None:
    here = fleet.options({}, {}, {}, slots_per_sandbox=1, connect_timeout_s=SILENT_S)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"backend": "ssh", **here}))
    async with SandboxPool("ssh", **here) as pool, pool.slots(2) as slots:
        backend = make_backend("ssh", {name: here[name] for name in here if name != "slots_per_sandbox"})
        try:
            with anyio.fail_after(SILENT_S + SLACK_S):
                found = await backend.sandboxes()
            assert {(info.sandbox, info.host) for info in found} == {
                (slot.sandbox, fleet.names[fleet.of(slot)]) for slot in slots
            }
            assert {info.host for info in found} == set(fleet.names[1:])
            words = [str(Path(sys.executable).with_name("hermes-exec")), "ps", "--config", str(config)]
            listed = await to_thread.run_sync(
                lambda: subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
            )
            assert "host" in listed.stdout.splitlines()[0].split()
            assert all(name in listed.stdout for name in fleet.names[1:])
            assert f"{fleet.names[0]} is left out" in listed.stderr
            reaped = await backend.reap(ReapFilter(run_id=pool.run_id))
            assert {each.sandbox for each in reaped} == {slot.sandbox for slot in slots}
        finally:
            await backend.aclose()
    assert [left(directory) for directory in fleet.directories] == [[], [], []]


async def test_doctor_names_the_host_that_is_away_and_the_reason(fleet: Fleet, tmp_path: Path) -> None:
    await to_thread.run_sync(fleet.servers[1].stop)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"backend": "ssh", **fleet.options({}, {})}))
    words = [str(Path(sys.executable).with_name("hermes-exec")), "doctor", "--config", str(config)]

    def doctor(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], capture_output=True, text=True, check=False, timeout=120)

    done = await to_thread.run_sync(doctor, "--json")
    assert done.returncode == 0, done.stderr
    there, away = json.loads(done.stdout)
    assert (there["host"], there["status"]) == (fleet.names[0], "ok")
    assert (away["host"], away["status"]) == (fleet.names[1], "unavailable")
    assert f"ssh {fleet.names[1]}: no SSH server listens there" in away["detail"]
    await to_thread.run_sync(fleet.servers[0].stop)
    done = await to_thread.run_sync(doctor)
    assert done.returncode == 3
    assert all(name in done.stdout for name in fleet.names[:2])
