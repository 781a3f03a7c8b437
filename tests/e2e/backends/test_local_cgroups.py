"""The cgroups of a local sandbox that was killed go with its directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_exec import SandboxPool
from hermes_exec.backends.base import ReapFilter
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.registry import make_backend
from hermes_exec.config import Limits
from hermes_exec.errors import SandboxDied
from tests.e2e.backends.sandboxes import left
from tests.support.outside import runner_pid
from tests.support.waiting import until

LIMITS = {"pids": 50, "memory_mb": 100, "cpus": 0.5}
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root makes cgroups"),
]
DRIVER = f"""
import anyio, sys
from hermes_exec import SandboxPool
async def main():
    async with SandboxPool("local", base_dir=sys.argv[1], slot_limits={LIMITS}) as pool, pool.slot() as slot:
        await slot.spawn(["sleep", "1000"])
        print(slot.sandbox, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


def a_driver(base: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(base)], stdout=subprocess.PIPE, text=True)


def groups(base: Path) -> list[Path]:
    """The cgroups that the one sandbox below `base` has made."""
    (told,) = base.glob("*/base/groups")
    found = [Path(line) for line in told.read_text().splitlines()]
    return [group for start in found for group in start.parent.glob(f"{start.name}*")]


async def test_those_of_a_killed_runner_are_removed_by_its_driver(tmp_path: Path) -> None:
    async with SandboxPool("local", base_dir=str(tmp_path), slot_limits=Limits(**LIMITS)) as pool:
        async with pool.slot() as slot:
            await slot.spawn(["sleep", "1000"])
            made = groups(tmp_path)
            assert made
            assert all(group.is_dir() for group in made)
            os.kill(runner_pid(slot.sandbox), signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await slot.run(["true"])
        await until(lambda: not any(group.exists() for group in made))
    assert left(tmp_path) == []


async def test_those_of_a_killed_runner_and_driver_are_removed_by_whoever_reaps(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    try:
        assert driver.stdout is not None
        runner = runner_pid(driver.stdout.readline().strip())
        made = groups(tmp_path)
        os.kill(runner, signal.SIGSTOP)  # it would clean up after its driver
    finally:
        driver.kill()
        driver.communicate()
    os.kill(runner, signal.SIGKILL)
    assert made
    assert all(group.is_dir() for group in made)
    (reaped,) = await make_backend(LocalConfig(base_dir=str(tmp_path))).reap(ReapFilter(orphans=True))
    assert reaped.backend == "local"
    assert [group for group in made if group.exists()] == []
    assert left(tmp_path) == []
