"""Launches keep a pace that all programs of a user on this host share."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from hermes_exec.pool.pace import wait_for_turn

pytestmark = pytest.mark.anyio
OTHER = """
import sys, anyio
from pathlib import Path
from hermes_exec.pool.pace import wait_for_turn
async def main():
    for _ in range(10):
        await wait_for_turn("test", 50, Path(sys.argv[1]))
anyio.run(main)
"""


async def test_the_first_one_waits_for_nothing(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        await wait_for_turn("test", 0.001, tmp_path)


async def test_programs_keep_it_together(tmp_path: Path) -> None:
    began = time.monotonic()
    others = [subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)]) for _ in range(3)]  # noqa: ASYNC220
    for _ in range(10):
        await wait_for_turn("test", 50, tmp_path)
    for other in others:
        assert await anyio.to_thread.run_sync(other.wait) == 0
    assert time.monotonic() - began >= 39 / 50


async def test_a_program_that_holds_it_does_not_hold_up_others(tmp_path: Path) -> None:
    with (tmp_path / "test.pace").open("w") as held, anyio.fail_after(20):
        fcntl.flock(held, fcntl.LOCK_EX)
        await wait_for_turn("test", 50, tmp_path)


@pytest.mark.parametrize("content", ["", "nothing of the kind", "other-boot 1e12", "a b c"])
async def test_a_file_that_says_nothing_is_begun_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "test.pace").write_text(content)
    with anyio.fail_after(5):
        await wait_for_turn("test", 1000, tmp_path)


async def test_without_a_file_nothing_is_waited_for(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        await wait_for_turn("test", 0.001, tmp_path / "missing")
        await wait_for_turn("test", 0.001, tmp_path / "missing")
