"""The local backend on this host: launch, streams, state, end, and sandboxes whose driver is gone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from hermes_exec.backends.base import LaunchSpec, ReapFilter
from hermes_exec.backends.local.backend import LocalBackend
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.owner import own_labels, process_start
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.removal import remove_tree
from hermes_exec.backends.sandbox_directory import OWNER_FILE, make_directory
from hermes_exec.config import Limits
from hermes_exec.errors import ChannelLost, ConfigError, LaunchError, SandboxDied
from tests.e2e.backends.sandboxes import left, sandbox, until_state
from tests.support.directories import open_directory
from tests.support.disks import small_disk
from tests.support.ordinary_user import interpreter
from tests.support.other_user import as_other, require_root
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.anyio, pytest.mark.loops]


def backend(base: Path) -> LocalBackend:
    return LocalBackend(LocalConfig(base_dir=str(base)))


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def exists(pid: int | str) -> bool:
    return process_start(int(pid)) is not None


def with_argument(argument: str) -> list[str]:
    """Pids of living processes that have this argument, whoever can see them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if argument.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


async def test_sandbox_runs_and_leaves_nothing(tmp_path: Path) -> None:
    async with sandbox(backend(tmp_path), LaunchSpec()) as made:
        assert (await made.sandbox.status()).state == "alive"
        ran = await made.run("/bin/echo", "hello")
        assert (ran.exit_code, ran.stdout) == (0, b"hello\n")
        pid = int(made.sandbox.id.removeprefix("local-"))
    assert left(tmp_path) == []
    assert not exists(pid)
    await made.sandbox.destroy()


async def test_child_has_none_of_our_descriptors_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_SECRET", "hush")
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), False)
    with ours, theirs:
        async with sandbox(backend(tmp_path), LaunchSpec()) as made:
            pid = int(made.sandbox.id.removeprefix("local-"))
            if os.geteuid():
                # It is undumpable: not even its own user may look.
                with pytest.raises(PermissionError):
                    environment(pid)
            else:
                links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                assert f"socket:[{os.fstat(theirs.fileno()).st_ino}]" not in links
                assert b"hush" not in environment(pid)
            assert b"hush" not in (await made.run("/usr/bin/env")).stdout
            assert os.getsid(pid) == pid


async def test_killed_runner_is_a_post_mortem(tmp_path: Path) -> None:
    local = backend(tmp_path)
    sandbox = await local.launch(LaunchSpec(), own_labels("t"))
    try:
        os.kill(int(sandbox.id.removeprefix("local-")), signal.SIGKILL)
        status = await until_state(sandbox, "dead")
        assert status.post_mortem is not None
        assert (status.post_mortem.exit_code, status.post_mortem.suspect) == (137, "outside")
        with pytest.raises(SandboxDied, match="ended") as caught:
            await sandbox.open(["attach"])
        assert caught.value.post_mortem == status.post_mortem
    finally:
        await sandbox.destroy()
    assert left(tmp_path) == []


async def test_nothing_of_a_slot_outlives_a_killed_runner(tmp_path: Path) -> None:
    mark = f"{time.time_ns() / 1e9:.9f}"
    async with sandbox(backend(tmp_path), LaunchSpec()) as made:
        await made.run("/bin/sh", "-c", f"setsid sleep {mark} >/dev/null 2>&1 & sleep {mark} >/dev/null 2>&1 &")
        await until(lambda: len(with_argument(mark)) == 2)
        os.kill(int(made.sandbox.id.removeprefix("local-")), signal.SIGKILL)
        await until_state(made.sandbox, "dead")
        made.channel.fail(ChannelLost("the test ended the sandbox"))
    await until(lambda: with_argument(mark) == [])
    assert left(tmp_path) == []


async def test_stopped_runner_is_unknown_not_dead(tmp_path: Path) -> None:
    sandbox = await backend(tmp_path).launch(LaunchSpec(), own_labels("t"))
    pid = int(sandbox.id.removeprefix("local-"))
    try:
        os.kill(pid, signal.SIGSTOP)
        await until_state(sandbox, "unknown")
        os.kill(pid, signal.SIGCONT)
        await until_state(sandbox, "alive")
    finally:
        await sandbox.destroy()


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.005, 0.01, 0.02])
async def test_cancelled_launch_leaves_nothing(tmp_path: Path, delay_s: float) -> None:
    local, sandbox = backend(tmp_path), None
    with anyio.move_on_after(delay_s):
        sandbox = await local.launch(LaunchSpec(), own_labels("t"))
        await anyio.sleep_forever()
    if sandbox is not None:
        await sandbox.destroy()
    assert left(tmp_path) == []


async def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    local = backend(tmp_path)
    with pytest.raises(ConfigError, match="no images"):
        await local.check(LaunchSpec(image="debian"))
    with pytest.raises(ConfigError, match="memory_mb"):
        await local.launch(LaunchSpec(limits=Limits(memory_mb=64)), own_labels("t"))
    await local.check(LaunchSpec(limits=Limits(open_files=64)))
    assert left(tmp_path) == []


async def test_base_directory_in_which_no_program_runs_is_refused(tmp_path: Path) -> None:
    require_root()
    with small_disk(tmp_path / "disk", "noexec") as disk:
        with pytest.raises(
            ConfigError, match=f"have their directories in {disk}: no program .* mounted noexec; choose"
        ):
            await backend(disk).check(LaunchSpec())
        assert left(disk) == []


FEW_PROCESSES = 40
FEW = """
from hermes_exec import ExecError, SandboxPool
try:
    with SandboxPool("local", base_dir="{base}", min_isolation="none") as pool, pool.slot(timeout_s=30) as slot:
        print(slot.run("true"))
except ExecError as error:
    print(error)
"""


def test_limit_of_processes_that_refuses_a_slot_is_named() -> None:
    require_root()
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
    with open_directory("hermes-few-") as base:
        base.chmod(0o1777)
        limit = ["prlimit", f"--nproc={FEW_PROCESSES}", interpreter(env, "nobody"), "-c", FEW.format(base=base)]
        done = as_other(*words, *limit)
    assert f"this user may have {FEW_PROCESSES} processes and threads (ulimit -u)" in done.stdout, done.stderr


def start_owner(base: Path, run_id: str, lease_s: float) -> tuple[subprocess.Popen[str], str]:
    options = json.dumps({"base_dir": str(base)})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.backends.owner_process", "local", options, run_id, "", str(lease_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_reap_takes_orphans_and_only_orphans(tmp_path: Path) -> None:
    local = make_backend(LocalConfig(base_dir=str(tmp_path)))
    owner, name = start_owner(tmp_path, "run-a", 60)
    try:
        (info,) = await local.sandboxes()
        assert (info.sandbox, info.owner, info.state, info.labels.run_id) == (name, "alive", "running", "run-a")
        assert await local.reap(ReapFilter(orphans=True)) == []
        assert await local.reap(ReapFilter(run_id="run-b")) == []
    finally:
        end(owner)
    (reaped,) = await local.reap(ReapFilter(orphans=True))
    assert reaped.run_id == "run-a"
    assert left(tmp_path) == []
    assert not exists(name.removeprefix("local-"))


async def test_the_sandbox_of_a_killed_driver_ends_long_before_its_lease(tmp_path: Path) -> None:
    owner, name = start_owner(tmp_path, "run-a", 3600)
    pid = name.removeprefix("local-")
    end(owner)
    await until(lambda: not exists(pid), 40)
    await make_backend(LocalConfig(base_dir=str(tmp_path))).reap(ReapFilter(orphans=True))
    assert left(tmp_path) == []


async def test_a_driver_that_was_killed_before_it_signed_its_directory_leaves_none(tmp_path: Path) -> None:
    local = make_backend(LocalConfig(base_dir=str(tmp_path)))
    program = (
        "import os, sys; from hermes_exec.backends import sandbox_directory, owner\n"
        "sandbox_directory.to_json = lambda labels: os.kill(os.getpid(), 9)\n"
        "sandbox_directory.make_directory(sys.argv[1], 'hermes-exec-', owner.own_labels('t'))"
    )
    assert (await anyio.run_process([sys.executable, "-c", program, str(tmp_path)], check=False)).returncode == -9
    (name,) = left(tmp_path)
    others = {"hermes-exec-00000000-2-1-abcdef_1", "hermes-exec-results"}
    for other in others:
        (tmp_path / other).mkdir()
    (reaped,) = await local.reap(ReapFilter(orphans=True))
    assert reaped.sandbox == name
    assert set(left(tmp_path)) == others


async def test_a_directory_that_is_not_signed_yet_is_left_to_its_maker(tmp_path: Path) -> None:
    directory = make_directory(str(tmp_path), "hermes-exec-", own_labels("t"))
    (directory.path / OWNER_FILE).unlink()
    assert await make_backend(LocalConfig(base_dir=str(tmp_path))).reap(ReapFilter(orphans=True)) == []
    assert left(tmp_path) == [directory.path.name]


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="a small file system is mounted by root")
async def test_a_launch_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)])
    try:
        (tmp_path / "full").write_bytes(bytes(1 << 20))
        with pytest.raises(LaunchError, match="No space left on device"):
            await backend(tmp_path).launch(LaunchSpec(), own_labels("t"))
        assert left(tmp_path) == ["full"]
    finally:
        await anyio.run_process(["umount", str(tmp_path)])


def test_removal_reaches_any_depth_with_any_rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `rm` of busybox ends where paths are too long, without a word."""
    (tmp_path / "rm").symlink_to(shutil.which("true") or "/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    left = tmp_path / "left"
    left.mkdir()
    fd = os.open(left, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d" * 200, 0o700, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove_tree(left)
    assert not left.exists()
