"""The watch of the event loop: how late it is."""

from __future__ import annotations

import time

import anyio
import pytest

from hermes_atropos.loop_watch import LoopWatch

pytestmark = pytest.mark.anyio


async def test_watch_measures_how_late_the_loop_is() -> None:
    watch = LoopWatch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.sleep(0.1)
        time.sleep(1)  # noqa: ASYNC251 - blocks the loop until half a second after the end of a pause
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    (late_s,) = watch.take_lateness()
    assert 0.4 < late_s < 5
    assert watch.take_lateness() == []
