"""What is told of a test that hangs."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from tests.support.hangs import tell

pytestmark = pytest.mark.anyio


async def waits_for(event: anyio.Event) -> None:
    await event.wait()


def sleeps(until: threading.Event) -> None:
    until.wait()


@pytest.mark.loops
async def test_threads_and_coroutines_are_told(tmp_path: Path) -> None:
    done, over = anyio.Event(), threading.Event()
    thread = threading.Thread(target=sleeps, args=[over])
    thread.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits_for, done)
            await anyio.wait_all_tasks_blocked()
            with (tmp_path / "told").open("w") as out:
                tell("test_it", out)
            done.set()
    finally:
        over.set()
        thread.join()
    told = (tmp_path / "told").read_text()
    assert "test_it hangs" in told
    assert "in sleeps" in told
    assert "waits_for" in told.partition("coroutine:")[2]
