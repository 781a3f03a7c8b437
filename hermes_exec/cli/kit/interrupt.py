"""Runs the asynchronous part of a command so that SIGINT, SIGTERM and SIGHUP end it with every box gone."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import say

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_async(main: Callable[[], Awaitable[int]]) -> int:
    """Run `main` on an event loop and return its exit code, or INTERRUPTED after a signal.

    The first signal cancels `main`, which ends its boxes on the way out. A second one no longer waits: it is left to
    Python, and the boxes end by their last resort at exit and by their lease.

    A hang-up that is ignored already, as under `nohup`, stays ignored.

    Raises:
        ExecError: as `main` did.
    """
    return anyio.run(_guarded, main)


async def _guarded(main: Callable[[], Awaitable[int]]) -> int:
    received: list[signal.Signals] = []
    error: Exception | SystemExit | None = None
    code = exits.OK
    async with anyio.create_task_group() as tasks:

        async def watch(*, task_status: TaskStatus[None]) -> None:
            ignores_hang_up = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            ending = [number for number in ENDING if number != signal.SIGHUP or not ignores_hang_up]
            with anyio.open_signal_receiver(*ending) as signals:
                task_status.started()
                async for number in signals:
                    received.append(number)
                    say(f"{number.name}: ending all boxes")
                    break
            tasks.cancel_scope.cancel()

        await tasks.start(watch)
        try:
            code = await main()
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - raised again outside of the task group, which would wrap it
            error = raised
        tasks.cancel_scope.cancel()
    if received:
        return exits.INTERRUPTED
    if error is not None:
        raise error
    return code
