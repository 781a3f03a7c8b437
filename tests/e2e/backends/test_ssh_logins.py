"""What a login costs and leaves: start-up files that take seconds or leave programs behind, and a home without room."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import BackendUnavailable, ConfigError, ExecError, SandboxPool
from hermes_exec.backends.base import LaunchSpec
from hermes_exec.backends.owner import own_labels
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.runner_binary import find_runner
from tests.support.directories import let_others_pass
from tests.support.disks import small_disk
from tests.support.other_user import require_root
from tests.support.sshd import Server, server

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
TRANSPORTS = ["openssh", "paramiko"]


@contextlib.contextmanager
def host_with(home: Path, start_up: str, **variables: object) -> Iterator[Server]:
    """A server whose user has this home, with these commands in `.bashrc`."""
    (home / ".bashrc").write_text(start_up)
    words = " ".join(f"{name}={value}" for name, value in {"HOME": home, "TMPDIR": home, **variables}.items())
    with server(settings=f"SetEnv {words} SHLVL=0") as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return let_others_pass(tmp_path)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_slow_login_is_paid_once_for_probe_and_once_for_start(transport: str, home: Path) -> None:
    logins = home / "logins"
    with host_with(home, f"echo login >>{logins}; sleep 0.5") as host:

        def count() -> int:
            return len(logins.read_text().split()) if logins.exists() else 0

        async def launch() -> tuple[int, int]:
            """The logins of a check of the host, and of a sandbox with its first stream."""
            before = count()
            backend = make_backend("ssh", host.options(transport=transport))
            await backend.check(LaunchSpec())
            checked = count()
            sandbox = await backend.launch(LaunchSpec(), own_labels("logins"))
            stream = await sandbox.open(["attach"])
            launched = count()
            await stream.aclose()
            await sandbox.destroy()
            await backend.aclose()
            return checked - before, launched - checked

        assert await launch() == (2, 1), "one more installs the runner"
        assert await launch() == (1, 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_login_that_leaves_a_program_with_its_output_does_not_hang(transport: str, home: Path) -> None:
    pids = home / "pids"
    noise = f"echo noise; echo more >&2; sleep 600 & echo $! >>{pids}"
    with host_with(home, noise) as host:
        try:
            with anyio.fail_after(90):
                async with SandboxPool("ssh", **host.options(transport=transport)) as pool, pool.slot() as slot:
                    assert (await slot.run("cat", stdin="there and back")).stdout == "there and back"
        finally:
            for pid in pids.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_login_that_leaves_a_program_that_prints_is_named(transport: str, home: Path) -> None:
    pids = home / "pids"
    prints = f"sh -c 'echo $$ >>{pids}; for n in $(seq 600); do echo tick; sleep 0.1; done' &"
    with host_with(home, prints) as host:
        try:
            with anyio.fail_after(90), pytest.raises(ExecError, match=r"wrote 'tick'.*redirect the output"):
                async with SandboxPool("ssh", **host.options(transport=transport)) as pool, pool.slot() as slot:
                    for _ in range(100):
                        await slot.run("sleep 0.2")
        finally:
            for pid in pids.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_runner_that_cannot_start_is_reported_with_its_reason(transport: str, home: Path) -> None:
    with host_with(home, "") as host:
        backend = make_backend("ssh", host.options(transport=transport))
        try:
            await backend.check(LaunchSpec())
            (runner,) = (home / ".cache/hermes-exec").iterdir()
            runner.write_text("#!/bin/sh\necho it is broken >&2\nexit 9\n")
            with pytest.raises(Exception, match=r"the runner did not answer \(9\): it is broken"):
                await backend.launch(LaunchSpec(), own_labels("logins"))
        finally:
            await backend.aclose()


@pytest.mark.parametrize(("transport", "reason"), [("openssh", "no more of you"), ("paramiko", "was closed")])
async def test_session_that_ends_before_the_start_is_reported(transport: str, reason: str, home: Path) -> None:
    closed = home / "closed"
    refuse = f'if [ -e {closed} ]; then echo no more of you >&2; exit 1; fi; eval "$SSH_ORIGINAL_COMMAND"'
    with server(settings=f"ForceCommand {refuse}") as host:
        backend = make_backend("ssh", host.options(transport=transport))
        try:
            await backend.check(LaunchSpec())
            closed.touch()
            with pytest.raises(BackendUnavailable, match=rf"the connection failed .*{reason}"):
                await backend.launch(LaunchSpec(), own_labels("logins"))
        finally:
            await backend.aclose()


@pytest.fixture
def full_home(home: Path) -> Iterator[Path]:
    """A disk for the cache, with room for 3 MB."""
    require_root()
    with small_disk(home / "cache", size_bytes=3 << 20) as disk:
        yield disk


@pytest.fixture
def var_tmp() -> Iterator[Path]:
    """The directory for the runner below /var/tmp, as it was before the test."""
    directory = Path(f"/var/tmp/hermes-exec-{os.geteuid()}")
    before = set(directory.iterdir()) if directory.exists() else None
    yield directory
    if before is None:
        shutil.rmtree(directory, ignore_errors=True)


async def works(host: Server, **options: Any) -> None:
    async with SandboxPool("ssh", **host.options(**options)) as pool, pool.slot() as slot:
        assert (await slot.run("echo here")).stdout == "here\n"


async def test_runner_goes_to_the_next_directory_when_the_home_has_no_room(
    home: Path, full_home: Path, var_tmp: Path
) -> None:
    with host_with(home, "", XDG_CACHE_HOME=full_home) as host:
        await works(host)
    assert list((full_home / "hermes-exec").iterdir()) == []
    assert (var_tmp / f"runner-{find_runner('linux').sha256}").exists()


async def test_runner_that_is_there_needs_no_further_room(home: Path, full_home: Path) -> None:
    await anyio.run_process(["mount", "-o", "remount,size=9m", str(full_home)])
    with host_with(home, "", XDG_CACHE_HOME=full_home) as host:
        await works(host)
        (runner,) = (full_home / "hermes-exec").iterdir()
        before = runner.stat().st_mtime_ns
        await works(host)
        assert runner.stat().st_mtime_ns == before


async def test_cache_directory_is_the_configured_one(home: Path, full_home: Path) -> None:
    with host_with(home, "") as host:
        await works(host, cache_dir=str(home / "of mine"))
        assert [each.name for each in (home / "of mine").iterdir()] == [f"runner-{find_runner('linux').sha256}"]
        full = full_home / "full"
        with pytest.raises(ConfigError, match=rf"no private directory with \d+ MiB for the runner.* in {full}: set"):
            await works(host, cache_dir=str(full))
