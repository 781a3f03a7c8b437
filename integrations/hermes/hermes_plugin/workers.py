"""Workers of batch_runner.py, which it ends by SIGTERM."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from multiprocessing.util import Finalize


def end_worker_in_order() -> None:
    """Let SIGTERM end this process as `sys.exit` does, if it is a worker of `multiprocessing`.

    Otherwise the process would leave its sandboxes, and their containers would be removed by the next pool only. While
    the process ends, SIGTERM is ignored: it would interrupt the removal of the containers.
    """
    if multiprocessing.parent_process() is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        Finalize(None, signal.signal, (signal.SIGTERM, signal.SIG_IGN), exitpriority=1)  # before pools are closed
