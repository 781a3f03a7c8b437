"""Sandboxes on hosts that SSH reaches: what the connection goes through, and what bad input is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from hermes_exec import BackendUnavailable, ConfigError, ExecError, LaunchError, SandboxDied, SandboxPool
from hermes_exec.backends.base import ReapFilter, SandboxInfo
from hermes_exec.backends.helpers import helper_environment, unset_others
from hermes_exec.backends.registry import make_backend
from tests.e2e.backends.sandboxes import left, sandboxes_of
from tests.support.directories import let_others_pass
from tests.support.sshd import Server, make_key, server
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
TRANSPORTS = ["openssh", "paramiko"]


@pytest.fixture(params=TRANSPORTS)
def options(request: pytest.FixtureRequest, ssh_server: Server, tmp_path: Path) -> dict[str, Any]:
    let_others_pass(tmp_path)
    return ssh_server.options(transport=request.param, base_dir=str(tmp_path), connect_timeout_s=10)


def clients() -> list[str]:
    """Processes of SSH clients with their files in the temporary directory of these tests."""
    mine = f"ssh .*{tempfile.gettempdir()}/hermes-exec-ssh-"
    done = subprocess.run(["pgrep", "-af", mine], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


async def found(options: dict[str, Any]) -> list[SandboxInfo]:
    return await sandboxes_of("ssh", options)


async def test_everything_is_gone_afterwards(options: dict[str, Any], tmp_path: Path) -> None:
    async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
        assert slot.sandbox is not None
        assert len(left(tmp_path)) == 1
        (info,) = await found(options)
        assert (info.sandbox, info.owner, info.state, info.ended) == (slot.sandbox, "alive", "alive", False)
    assert left(tmp_path) == []
    await until(lambda: clients() == [])


async def test_a_restarted_server_loses_nothing(options: dict[str, Any], ssh_server: Server) -> None:
    async with SandboxPool("ssh", **options, lease_s=30) as pool, pool.slot() as slot:
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                command = "for i in $(seq 40); do echo $i; sleep 0.1; done"
                seen.append((await slot.run(command, timeout_s=60)).stdout)

            tasks.start_soon(run)
            await anyio.sleep(1)
            await to_thread.run_sync(ssh_server.stop)
            await anyio.sleep(1)
            await to_thread.run_sync(ssh_server.start)
        assert seen == ["".join(f"{i}\n" for i in range(1, 41))]
        assert (await slot.run("echo again")).stdout == "again\n"


async def test_a_killed_runner_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    async with SandboxPool("ssh", **options) as pool:
        async with pool.slot() as slot:
            (sandbox,) = await found(options)
            text = (tmp_path / sandbox.sandbox.rpartition(":")[2] / "runner.json").read_text()
            os.kill(int(text.partition('"pid":')[2].partition(",")[0]), signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await slot.run("sleep 20", timeout_s=30)
        async with pool.slot() as slot:
            assert (await slot.run("echo replaced")).stdout == "replaced\n"
    await until(lambda: left(tmp_path) == [])


DRIVER = """
import sys, time
from hermes_exec import SandboxPool
with SandboxPool("ssh", lease_s=3, **eval(sys.argv[1])) as pool, pool.slot() as slot:
    slot.spawn("sleep 1000")
    print("here", flush=True)
    time.sleep(1000)
"""


async def test_a_killed_driver_leaves_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    scratch = tempfile.TemporaryDirectory(dir="/tmp")  # the path of a socket is short
    command = [sys.executable, "-c", DRIVER, repr(options)]
    with scratch as private:
        driver = await anyio.open_process(command, env={**os.environ, "TMPDIR": private})
        await killed(driver)
        await until(lambda: not [name for name in os.listdir(private) if name.startswith("hermes-exec-ssh")])
    await until(lambda: left(tmp_path) == [])
    await until(lambda: clients() == [])


async def killed(driver: anyio.abc.Process) -> None:
    """Kill a driver once it has a sandbox."""
    async with driver:
        try:
            assert driver.stdout is not None
            assert (await driver.stdout.receive()).startswith(b"here")
        finally:
            driver.kill()


async def test_what_was_killed_is_reaped_whoever_owned_it(options: dict[str, Any], tmp_path: Path) -> None:
    backend = make_backend("ssh", options)
    async with SandboxPool("ssh", **options) as pool, pool.slot():
        assert await backend.reap(ReapFilter(orphans=True)) == []
        directory = tmp_path / left(tmp_path)[0]
        owner = directory / "owner.json"
        owner.write_text(owner.read_text().replace('"boot_id": "', '"boot_id": "another'))
        assert await backend.reap(ReapFilter(orphans=True)) == [], "it lives: its lease ends it"
        (copied,) = [Path(shutil.copytree(directory, tmp_path / "hermes-exec-of-another-host", ignore=_sockets))]
        (copied / "runner.json").write_text('{"pid": 1, "start": 0}')
        (reaped,) = await backend.reap(ReapFilter(orphans=True))
        assert reaped.reason == "it has ended"
        assert left(tmp_path) == [directory.name]
    await backend.aclose()


def _sockets(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name in {"run", "slots", "base"}]


async def refused(error: type[ExecError], text: str, **options: Any) -> None:
    """A pool with these options fails at once with such an error."""
    with anyio.fail_after(40):
        with pytest.raises(error, match=text):
            async with SandboxPool("ssh", **options, launch_timeout_s=30) as pool, pool.slot(timeout_s=30):
                pass


async def test_who_is_not_let_in(options: dict[str, Any], tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    await refused(BackendUnavailable, "ssh-copy-id", **{**options, "identity_file": str(tmp_path / "other")})
    await refused(
        BackendUnavailable, "ssh-copy-id|No such file", **{**options, "identity_file": str(tmp_path / "missing")}
    )


async def test_a_host_whose_key_is_not_known(options: dict[str, Any], tmp_path: Path) -> None:
    known = tmp_path / "known hosts"
    await refused(BackendUnavailable, "ssh-keyscan", **{**options, "known_hosts": str(known)})
    assert not known.exists() or known.read_text() == ""
    accepting = {**options, "known_hosts": str(known), "host_keys": "accept-new"}
    for host_keys in ("accept-new", "strict"):
        async with SandboxPool("ssh", **{**accepting, "host_keys": host_keys}) as pool, pool.slot() as slot:
            assert (await slot.run("echo in")).stdout == "in\n"


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
async def test_a_host_key_that_has_changed(options: dict[str, Any], tmp_path: Path, host_keys: str) -> None:
    make_key(tmp_path / "mitm")
    kind, key = (tmp_path / "mitm.pub").read_text().split()[:2]
    address = options["hosts"].rpartition("@")[2].split(":")
    known = tmp_path / "known"
    known.write_text(f"[{address[0]}]:{address[1]} {kind} {key}\n")
    await refused(BackendUnavailable, "ssh-keygen -R", **{**options, "known_hosts": str(known), "host_keys": host_keys})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_host_that_says_nothing_is_not_waited_for_at_the_end(transport: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        given = {"hosts": f"me@127.0.0.1:{deaf.getsockname()[1]}", "ssh_config": "/dev/null", "connect_timeout_s": 90}
        backend = make_backend("ssh", {**given, "transport": transport})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.sandboxes)
            connection, _ = await to_thread.run_sync(deaf.accept)
            tasks.cancel_scope.cancel()
        began = anyio.current_time()
        await backend.aclose()
        assert anyio.current_time() - began < 45
        connection.close()


async def test_nobody_listens(options: dict[str, Any]) -> None:
    await refused(BackendUnavailable, "no SSH server", **{**options, "hosts": "root@127.0.0.1:1"})
    await refused(BackendUnavailable, "not known", **{**options, "hosts": "no-such-host.invalid"})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_key_with_a_passphrase(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    make_key(tmp_path / "locked", "a 'phrase' $HOME")
    with server() as locked:
        shutil.copy(tmp_path / "locked.pub", locked.directory / "authorized_keys")
        options = locked.options(transport=transport, identity_file=str(tmp_path / "locked"))
        await refused(BackendUnavailable, "passphrase|let us in", **options)
        await refused(BackendUnavailable, "passphrase|let us in", **options, passphrase=lambda: "wrong")
        async with SandboxPool("ssh", **options, passphrase=lambda: "a 'phrase' $HOME") as pool, pool.slot() as slot:
            assert (await slot.run("echo in")).stdout == "in\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_start_up_files_print_is_left_out(transport: str) -> None:
    with server(settings='ForceCommand echo noise; echo more >&2; eval "$SSH_ORIGINAL_COMMAND"') as noisy:
        async with SandboxPool("ssh", **noisy.options(transport=transport)) as pool, pool.slot() as slot:
            assert (await slot.run("echo clean")).stdout == "clean\n"


async def test_directories_that_cannot_be_used(options: dict[str, Any]) -> None:
    await refused(ConfigError, "base_dir", **{**options, "base_dir": "/proc"})
    await refused(ConfigError, "base_dir", **{**options, "base_dir": "/no/such/place"})


async def test_a_shell_that_is_none() -> None:
    with server(settings="ForceCommand echo This account is not available; exit 1") as closed:
        await refused(BackendUnavailable, "This account is not available", **closed.options())


@pytest.mark.parametrize("machine", ["riscv64", "s390x"])
async def test_a_host_of_another_architecture(machine: str, tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then echo {machine}; else exec /bin/uname "$@"; fi\n')
    uname.chmod(0o755)
    with server(settings=f"SetEnv PATH={tmp_path}:{os.defpath} SHLVL=2") as made:
        told = f"ssh .*: there is no runner for linux/{machine}, only for linux/"
        await refused(BackendUnavailable, told, **made.options())


async def test_hosts_take_turns(ssh_server: Server, tmp_path: Path) -> None:
    hosts = [f"{ssh_server.user}@{name}:{ssh_server.port}" for name in ("127.0.0.1", "localhost")]
    known = ssh_server.directory / "known_hosts"
    key = known.read_text().split(" ", 1)[1]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{ssh_server.port} {key}[localhost]:{ssh_server.port} {key}")
    options = ssh_server.options(hosts=hosts, known_hosts=str(tmp_path / "known"), slots_per_sandbox=1, max_sandboxes=2)
    async with SandboxPool("ssh", **options) as pool, pool.slots(2) as slots:
        assert {str(slot.sandbox).rpartition(":")[0] for slot in slots} == set(hosts)


def command(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("hermes-exec"), *words], capture_output=True, text=True, check=False
    )


@pytest.mark.whole
async def test_the_command_line_finds_its_sandboxes(options: dict[str, Any]) -> None:
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        listed = await to_thread.run_sync(command, ["ps", "-b", "ssh", *given, "--json"])
        assert [sandbox["sandbox"] for sandbox in json.loads(listed.stdout)] == [slot.sandbox], listed.stderr
    reaped = await to_thread.run_sync(command, ["reap", "--orphans", "-b", "ssh", *given])
    assert (reaped.returncode, reaped.stderr) == (0, "no such sandboxes\n")
    for words in (["ps"], ["reap", "--orphans"]):
        assert "ssh" not in (await to_thread.run_sync(command, words)).stderr
    refused = await to_thread.run_sync(command, ["ps", "-b", "ssh"])
    assert "hosts: field required" in refused.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hosts": []}, "hosts"),
        ({"hosts": "a b"}, "is not"),
        ({"hosts": "-oProxyCommand=x"}, "no name"),
        ({"hosts": {"host": "-x"}}, "no name"),
        ({"hosts": "h:99999"}, "port"),
        ({"hosts": "h", "transport": "telnet"}, "transport"),
        ({"hosts": "h", "base_dir": "relative"}, "absolute"),
        ({}, "hosts"),
        ({"hosts": "h", "image": "debian"}, "image"),
        ({"hosts": "h", "slot_root": "own"}, "own"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SandboxPool("ssh", **options)


async def test_a_launch_that_is_given_up_leaves_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    for pause_s in (0.05, 0.2, 0.4, 0.6):
        with anyio.move_on_after(pause_s):
            async with SandboxPool("ssh", **options) as pool, pool.slot():
                await anyio.sleep_forever()
    await until(lambda: left(tmp_path) == [])
    await until(lambda: clients() == [])


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o711)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=711", "full", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be made here")
    try:
        (disk / "filler").write_bytes(bytes(56 << 10))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk(options: dict[str, Any], full_disk: Path) -> None:
    await refused(LaunchError, "[Nn]o space", **{**options, "base_dir": str(full_disk)})


async def test_a_temporary_directory_with_a_long_name(
    ssh_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("100%" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with SandboxPool("ssh", **ssh_server.options(transport="openssh")) as pool, pool.slot() as slot:
        assert (await slot.run("echo here")).stdout == "here\n"
    assert [name for name in os.listdir(long) if name.startswith("hermes-exec-ssh")] == []


async def test_a_clients_configuration_that_would_detach_it(ssh_server: Server, tmp_path: Path) -> None:
    settings = tmp_path / "config"
    settings.write_text("ForkAfterAuthentication yes\nStdinNull yes\nRemoteCommand false\nRequestTTY force\n")
    options = ssh_server.options(transport="openssh", ssh_config=str(settings))
    async with SandboxPool("ssh", **options) as pool, pool.slot() as slot:
        assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
    await until(lambda: clients() == [])


FORKING = """
import os, sys, time
from hermes_exec import SandboxPool
children, took_s = [], []
while len(took_s) < 4 and min(took_s, default=4) >= 4:  # one that takes long may be the machine's
    with SandboxPool("ssh", **eval(sys.argv[1])) as pool, pool.slot() as slot:
        children.append(os.fork())
        if children[-1] == 0:
            time.sleep(60)
            os._exit(0)
        began = time.monotonic()
    took_s.append(time.monotonic() - began)
print(min(took_s) < 4, flush=True)
input()
for child in children:
    os.kill(child, 9)
"""


async def test_a_forked_child_does_not_keep_the_connection(ssh_server: Server, tmp_path: Path) -> None:
    options = ssh_server.options(transport="openssh", base_dir=str(tmp_path))
    async with await anyio.open_process([sys.executable, "-c", FORKING, repr(options)]) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        assert (await driver.stdout.receive()).startswith(b"True")
        await until(lambda: clients() == [], 20)  # the child lives for longer
        await driver.stdin.send(b"\n")


PROXY = """
import os, socket, sys, threading
told, host, port = sys.argv[1:]
with open(told, "ab") as file:
    for pid in ("self", os.getppid()):
        file.write(open(f"/proc/{pid}/environ", "rb").read())
there = socket.create_connection((host, int(port)))
def send():
    while data := os.read(0, 65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := there.recv(65536):
    os.write(1, data)
"""
KEYS = ("OPENAI_API_KEY", "WANDB_API_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "WANTED_TOKEN"):
        monkeypatch.setenv(name, f"value-of-{name}")


@pytest.mark.usefixtures("keys")
async def test_helpers_do_not_get_the_drivers_keys(ssh_server: Server, tmp_path: Path) -> None:
    told, script, settings = tmp_path / "told", tmp_path / "proxy.py", tmp_path / "ssh_config"
    script.write_text(PROXY)
    settings.write_text(f"Host *\n  ProxyCommand {sys.executable} {script} {told} %h %p\n")
    more = {"ssh_config": str(settings), "helper_env": ["WANTED_TOKEN"], "transport": "openssh"}
    seen = b""
    async with SandboxPool("ssh", **ssh_server.options(**more)) as pool, pool.slot() as slot:
        assert (await slot.run("echo there")).stdout == "there\n"
        for line in clients():
            seen += await anyio.Path(f"/proc/{line.split()[0]}/environ").read_bytes()
    of_proxy = told.read_bytes()
    assert seen.count(b"value-of-WANTED_TOKEN") >= 2
    assert b"PATH=" in of_proxy
    assert b"value-of-WANTED_TOKEN" in of_proxy
    assert not [name for name in KEYS if name.encode() in seen + of_proxy]


@pytest.mark.usefixtures("keys")
async def test_proxy_command_of_paramiko_does_not_get_the_drivers_keys() -> None:
    command = [*unset_others(helper_environment("WANTED_TOKEN")), "env"]
    got = (await anyio.run_process(command)).stdout.decode()
    assert "value-of" not in " ".join(command)
    assert "PATH=" in got
    assert "value-of-WANTED_TOKEN" in got
    assert not [name for name in KEYS if name in got]
