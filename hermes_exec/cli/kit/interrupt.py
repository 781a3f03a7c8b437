"""Runs the asynchronous part of a command: SIGINT, SIGTERM and SIGHUP end it, and all its sandboxes."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import anyio

from hermes_exec.cli.kit import exits

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECOND_SIGNAL_TIMEOUT_S = 10.0
"""Seconds that the end may still take after a second signal."""
_LAST_RESORT_S = 5.0


def run_async(main: Callable[[], Awaitable[int]], *, notice: str | None = "ending all sandboxes") -> int:
    """Run `main` on an event loop and return its exit code, or INTERRUPTED after a signal.

    The first signal cancels `main`, which ends its sandboxes on the way out. A second one leaves 10 more seconds;
    then the sandboxes end by their last resort, and the process with them. Further signals have no effect. No signal
    raises an exception, until the process ends: launchers and impatient users send several, and an exception inside the
    event loop would interrupt the end that the first signal began.

    An ignored hang-up, as under `nohup`, stays ignored. `notice` is printed at the first signal.

    Raises:
        ExecError: As `main`.
    """
    signals = _Signals()
    signals.catch()
    try:
        return anyio.run(_run_until_signal, main, signals, notice)
    finally:
        if not signals.received:
            signals.restore()


async def _run_until_signal(main: Callable[[], Awaitable[int]], signals: _Signals, notice: str | None) -> int:
    code = exits.OK
    try:
        with anyio.CancelScope() as scope, signals.call_on_signal(partial(_end, scope, signals, notice)):
            if not signals.received:
                code = await main()
    except (Exception, SystemExit):
        if not signals.received:
            raise
    return exits.INTERRUPTED if signals.received else code


def _end(scope: anyio.CancelScope, signals: _Signals, notice: str | None) -> None:
    if scope.cancel_called:
        return
    scope.cancel()
    if notice is not None:
        # The reader may be gone: a closed terminal, or an ended program at the end of the pipe. Rich would raise
        # SystemExit and close stdout; a plain write does not.
        with suppress(OSError, SystemExit):
            sys.stderr.write(f"{signals.received[0].name}: {notice}\n")
            sys.stderr.flush()


class _Signals:
    """The received signals. Their handlers only record them and wake the event loop."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._before: dict[signal.Signals, object] = {}
        self._wake: Callable[[], object] | None = None
        # The only kind of queue that allows a put in a handler that interrupts another put.
        self._noted: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def catch(self) -> None:
        """Install the handlers."""
        threading.Thread(target=self._watch, name="second signal", daemon=True).start()
        for number in ENDING_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        self._noted.put(False)

    @contextmanager
    def call_on_signal(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` in the running event loop after each signal, and at once if one was received before."""
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, callback)
        try:
            if self.received:
                callback()
            yield
        finally:
            self._wake = None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        self._noted.put(True)
        if self._wake is not None:
            self._wake()

    def _watch(self) -> None:
        """End the process if its end takes too long after a second signal."""
        count, until = 0, math.inf
        while True:
            try:
                if not self._noted.get(timeout=None if until == math.inf else max(0.0, until - time.monotonic())):
                    return
            except queue.Empty:
                break
            count += 1
            if count == 2:
                until = time.monotonic() + SECOND_SIGNAL_TIMEOUT_S
        last_resort = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
        last_resort.start()
        last_resort.join(_LAST_RESORT_S)
        os._exit(exits.INTERRUPTED)
