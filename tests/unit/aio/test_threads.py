"""Threads of the user's functions."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextvars import ContextVar

import anyio
import pytest

from hermes_exec.aio.threads import call_in_daemon_thread

pytestmark = pytest.mark.anyio
NAME: ContextVar[str] = ContextVar("NAME")


async def test_daemon_thread_returns_the_result_in_the_context_of_the_caller() -> None:
    NAME.set("x")
    assert await call_in_daemon_thread(lambda: (NAME.get(), threading.current_thread().daemon)) == ("x", True)


async def test_daemon_thread_raises_what_the_function_raises() -> None:
    with pytest.raises(SystemExit, match="3"):
        await call_in_daemon_thread(lambda: sys.exit(3))


async def test_abandoned_threads_leave_the_threads_of_other_work_free() -> None:
    stop = threading.Event()
    try:
        with anyio.move_on_after(0.1):
            async with anyio.create_task_group() as tasks:
                for _ in range(60):
                    tasks.start_soon(call_in_daemon_thread, stop.wait)
        with anyio.fail_after(60):
            assert await anyio.to_thread.run_sync(lambda: 7) == 7
    finally:
        stop.set()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_abandoned_thread_does_not_keep_the_program_from_ending(loop: str) -> None:
    program = f"""
import anyio, threading
from hermes_exec.aio.threads import call_in_daemon_thread

async def main():
    with anyio.move_on_after(0.1):
        await call_in_daemon_thread(threading.Event().wait)
    print("over")

anyio.run(main, backend={loop!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "over\n"
