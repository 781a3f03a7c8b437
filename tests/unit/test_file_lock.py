"""Locks of files."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from hermes_exec.file_lock import hold_lock, lock_file, wait_for_lock


@pytest.mark.anyio
async def test_lock_file_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "it.lock"
    with path.open("ab") as mine, path.open("ab") as another:
        assert lock_file(mine)
        assert not lock_file(another)
        with anyio.move_on_after(0.02) as scope:
            await wait_for_lock(another, poll_s=0.005)
        assert scope.cancelled_caught
        mine.close()
        await wait_for_lock(another, poll_s=0.005)


@pytest.mark.anyio
async def test_locked_without_a_place_for_the_lock_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with hold_lock(tmp_path / "file" / "below") as held:
        assert not held
    async with hold_lock(tmp_path / "new" / "it") as held:
        assert held
