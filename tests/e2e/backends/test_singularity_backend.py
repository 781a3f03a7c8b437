"""Sandboxes of Apptainer: what they see of the host, what becomes of them, limits, and what bad input is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import (
    BackendUnavailable,
    ConfigError,
    ImageError,
    LaunchError,
    LaunchTimeout,
    Limits,
    SandboxDied,
    SandboxPool,
)
from hermes_exec.backends.base import ReapFilter, SandboxInfo
from hermes_exec.backends.registry import make_backend
from tests.e2e.backends.sandboxes import left, sandboxes_of
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.singularity]
Image = Callable[[str], str]
HOSTS = anyio.Path("/etc/hosts")


@pytest.fixture
def options(singularity_image: Image, tmp_path: Path) -> dict[str, Any]:
    base = tmp_path / "sandboxes"
    base.mkdir()
    return {"image": singularity_image("busybox"), "base_dir": str(base), "cache_dir": str(tmp_path / "cache")}


def base_of(options: dict[str, Any]) -> Path:
    return Path(options["base_dir"])


async def found(options: dict[str, Any]) -> list[SandboxInfo]:
    return await sandboxes_of("singularity", {"base_dir": options["base_dir"]})


async def test_everything_is_gone_afterwards(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        assert (await slot.run("touch /changed && cat", stdin="there and back")).stdout == "there and back"
        (info,) = await found(options)
        assert (info.sandbox, info.owner, info.state) == (slot.sandbox, "alive", "running")
    assert left(base_of(options)) == []


async def test_nothing_of_the_host_is_in_the_sandbox(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND"):
        monkeypatch.setenv(name, "/usr/share:/leaked")
    monkeypatch.setenv("APPTAINERENV_LEAKED", "leaked")
    monkeypatch.setenv("LEAKED", "leaked")
    async with SandboxPool("singularity", env={"MINE": "1"}, **options) as pool, pool.slot() as slot:
        variables = (await slot.run("env")).stdout
        names = {line.partition("=")[0] for line in variables.splitlines()}
        assert names - {"HERMES_EXEC_REQUEST", "_"} == {
            *("HOME", "LANG", "LOGNAME", "MINE", "PATH", "PWD", "SHLVL", "TMPDIR", "USER"),
        }
        assert "SHLVL=1\n" in variables
        assert "LANG=C.UTF-8\n" in variables
        assert slot.isolation.network.startswith("the host's")
        assert (await slot.run("ls / /leaked")).stderr != ""
        assert (await slot.run("hostname")).stdout.strip() != os.uname().nodename
        mounts = (await slot.run("cat /proc/self/mountinfo")).stdout
        assert "/etc/localtime" not in mounts


@pytest.mark.skipif(os.geteuid() != 0, reason="of a sandbox of root")
async def test_root_of_a_sandbox_cannot_change_the_host(options: dict[str, Any]) -> None:
    hosts = await HOSTS.read_bytes()
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        said = await slot.run(
            "cat /proc/sys/kernel/panic_on_oops > /proc/sys/kernel/panic_on_oops; echo 1 > /etc/hosts"
        )
        assert "ead-only" in said.stderr
        assert await HOSTS.read_bytes() == hosts
        written = await slot.run(
            "find /proc/sys /sys -maxdepth 3 -type f -exec sh -c ': >> {}' ';' 2>/dev/null; echo done"
        )
        assert written.stdout == "done\n"
        assert (await slot.run("find /proc/sys /sys -writable -type f | head")).stdout == ""
        assert (await slot.run("mkdir /dev/x; mknod /dev/x/disk b 254 0")).exit_code != 0
        assert (await slot.run("mount -t tmpfs none /tmp")).exit_code != 0
        assert (await slot.run("cat /proc/keys /proc/timer_list; ls /sys")).stdout.split() == [
            *("block", "bus", "class", "dev", "devices", "module"),
        ]


async def test_without_network_there_is_none(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", network=False, **options) as pool, pool.slot() as slot:
        lines = (await slot.run("cat /proc/net/dev")).stdout.splitlines()[2:]
        assert [line.split(":")[0].strip() for line in lines] == ["lo"]
        assert (await slot.run("cat /etc/hosts")).stdout.startswith("127.0.0.1 localhost")


async def test_volumes(options: dict[str, Any], tmp_path: Path) -> None:
    open_one, closed = tmp_path / "open, with a comma", tmp_path / 'closed "one"'
    open_one.mkdir()
    closed.mkdir()
    (closed / "given").write_text("from the host")
    options["volumes"] = [f"{open_one}:/data", f"{closed}:/fixed:ro"]
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        assert (await slot.run("cat /fixed/given; echo x > /data/made")).stdout == "from the host"
        assert (await slot.run("echo x > /fixed/made")).exit_code != 0
    assert (open_one / "made").read_text() == "x\n"
    with pytest.raises(ConfigError, match="no /not/there on this host"):
        await make_pool({**options, "volumes": ["/not/there:/data"]})


async def make_pool(options: dict[str, Any], **more: Any) -> None:
    async with SandboxPool("singularity", **{**options, **more}) as pool, pool.slot():
        pass


async def test_a_killed_sandbox_is_told_and_replaced(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", **options) as pool:
        async with pool.slot() as slot:
            (pid,) = runners(base_of(options))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxDied) as raised:
                await slot.run("sleep 20", timeout_s=30)
            assert raised.value.post_mortem is not None
            assert raised.value.post_mortem.suspect in {"outside", "unknown"}
        async with pool.slot() as slot:
            assert (await slot.run("echo replaced")).stdout == "replaced\n"
    await until(lambda: left(base_of(options)) == [])


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def runners(base: Path) -> list[int]:
    """Serving runners of sandboxes in a directory of this host, by what their directories say."""
    from hermes_exec.backends.sandbox_directory import SandboxDirectory

    pids = [SandboxDirectory(base / name).runner_pid() for name in left(base)]
    return [pid for pid in pids if pid is not None]


DRIVER = """
import sys, time
from hermes_exec import SandboxPool
with SandboxPool("singularity", **eval(sys.argv[1])) as pool, pool.slot() as slot:
    slot.spawn("sleep 1000")
    print("here", flush=True)
    time.sleep(1000)
"""


async def test_a_killed_driver_leaves_nothing_running(options: dict[str, Any]) -> None:
    driver = await anyio.open_process([sys.executable, "-c", DRIVER, repr(options)])
    async with driver:
        try:
            assert driver.stdout is not None
            assert (await driver.stdout.receive()).startswith(b"here")
            (pid,) = runners(base_of(options))
        finally:
            driver.kill()
    await until(lambda: not exists(pid), 30)  # long before its lease
    backend = make_backend("singularity", {"base_dir": options["base_dir"]})
    (reaped,) = await backend.reap(ReapFilter(orphans=True))
    assert "is gone" in reaped.reason
    assert left(base_of(options)) == []


async def test_what_lives_is_ended_by_its_run(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        (pid,) = runners(base_of(options))
        backend = make_backend("singularity", {"base_dir": options["base_dir"]})
        assert await backend.reap(ReapFilter(orphans=True)) == []
        await backend.reap(ReapFilter(run_id=(await found(options))[0].labels.run_id))
        assert runners(base_of(options)) == []
        await until(lambda: not exists(pid))  # what the engine had started is collected by the engine
        with pytest.raises(SandboxDied):
            await slot.run("true")


async def test_a_cancelled_launch_leaves_nothing(options: dict[str, Any]) -> None:
    for patience_s in (0.01, 0.05, 0.1, 0.2):
        with anyio.move_on_after(patience_s):
            await make_pool(options)
        assert left(base_of(options)) == []


async def test_memory_that_runs_out_is_a_result(options: dict[str, Any]) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has no cgroups here")
    limits = Limits(memory_mb=64, pids=64)
    async with SandboxPool("singularity", limits=limits, **options) as pool, pool.slot() as slot:
        assert slot.isolation.limits["memory_mb"] == "cgroup of the sandbox"
        result = await slot.run("tail -c 200m /dev/zero | wc -c", timeout_s=60)
        assert result.exit_code != 0 or result.stdout.strip() != str(200 << 20)
        assert (await slot.run("echo alive")).stdout == "alive\n"


async def test_many_sandboxes_at_once(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", max_sandboxes=16, **options) as pool, pool.slots(16) as slots:
        assert len({slot.sandbox for slot in slots}) == 16
        results = [await slot.run("hostname") for slot in slots]
        assert len({result.stdout for result in results}) == 16
    assert left(base_of(options)) == []


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"image": "/not/there.sif"}, ImageError, "there is no image at /not/there.sif"),
        ({"image": "docker-archive:/not/there.tar"}, ImageError, "there is no image at /not/there.tar"),
        ({"image": None}, ConfigError, "needs an image"),
        ({"binary": "/not/there"}, BackendUnavailable, "install Apptainer"),
        ({"binary": "/bin/false"}, BackendUnavailable, "need Apptainer 1.1 or SingularityCE 3.10"),
        ({"base_dir": "/proc/here"}, ConfigError, "choose another base_dir"),
        ({"overlay": "ram"}, ConfigError, "overlay"),
        ({"volumes": ["/etc"]}, ConfigError, "source:target"),
        ({"limits": Limits(disk_mb=10)}, ConfigError, "disk_mb"),
        ({"image": "docker://127.0.0.1:1/nothing", "no_https": True}, ImageError, "registry is unreachable"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_input_is_told(
    options: dict[str, Any], given: dict[str, Any], error: type[Exception], told: str
) -> None:
    with anyio.fail_after(60), pytest.raises(error, match=told):
        await make_pool({**options, **given})
    assert left(base_of(options)) == []


async def test_a_file_that_is_no_image_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "broken.sif").write_bytes(b"no image at all" * 1000)
    with anyio.fail_after(60), pytest.raises(ImageError, match="cannot be opened"):
        await make_pool(options, image=str(tmp_path / "broken.sif"))
    assert left(base_of(options)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to mount a small disk")
async def test_a_full_disk_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)])
    try:
        await anyio.run_process(["sh", "-c", 'cat /dev/zero > "$0/all" 2>/dev/null; :', str(disk)])
        with anyio.fail_after(60), pytest.raises(LaunchError, match="No space left"):
            await make_pool(options, base_dir=str(disk))
        assert left(disk) == ["all"]
    finally:
        await anyio.run_process(["umount", str(disk)])


@pytest.mark.whole
async def test_directories_deeper_than_python_can_go_are_removed(options: dict[str, Any]) -> None:
    deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d || exit 1; i=$((i + 1)); done; echo made"
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        assert (await slot.run(deep)).stdout == "made\n"
    assert left(base_of(options)) == []


async def test_an_engine_that_hangs_is_given_up_in_time(options: dict[str, Any], tmp_path: Path) -> None:
    binary = tmp_path / "apptainer"
    binary.write_text("#!/bin/sh\ncase $1 in --version) exec apptainer --version ;; esac\nexec sleep 100\n")
    binary.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(LaunchTimeout):
        async with SandboxPool("singularity", binary=str(binary), launch_timeout_s=1, **options) as pool, pool.slot():
            pass
    assert time.monotonic() - began < 20
    assert left(base_of(options)) == []


def cgroups_of(pid: int) -> list[Path]:
    """Those that the engine has made for a sandbox, of version 1 and 2."""
    names = {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
    roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    return existing(root / name.lstrip("/") for name in names if "apptainer" in name for root in roots)


def existing(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.is_dir()]


@pytest.mark.whole
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups here")
async def test_a_frozen_sandbox_leaves_no_cgroups(options: dict[str, Any]) -> None:
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        assert (await slot.run("true")).ok
        (pid,) = runners(base_of(options))
        groups = cgroups_of(pid)
        assert groups != []
        os.kill(pid, signal.SIGSTOP)
    assert existing(groups) == []
    assert left(base_of(options)) == []
