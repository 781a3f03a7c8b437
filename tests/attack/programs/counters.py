"""Takes of one thing that the kernel counts by user as much as it is given, up to MOST, and holds it.

`python3 counters.py NAME MOST` prints how many it got, and ends with its standard input.
"""

from __future__ import annotations

import ctypes
import os
import pty
import signal
import sys
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
OTHERS = 4
"""As how many other users root takes the same: a limit by user would hold for each of them alone."""


def signals() -> object:
    """A signal that stays in the queue."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    return _checked(LIBC.sigqueue(os.getpid(), 40, None))


def timers() -> object:
    """A timer, for which an entry of that queue is reserved."""
    made = ctypes.c_void_p()
    return _checked(LIBC.timer_create(1, None, ctypes.byref(made)))


def inotify() -> object:
    """An instance of inotify."""
    return _checked(LIBC.inotify_init())


def queues() -> object:
    """A message queue of the default size, 80 KiB."""
    name = b"/hermes-%d-%d" % (os.getpid(), len(held))
    made = LIBC.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
    problem = ctypes.get_errno()
    if made != -1:
        LIBC.mq_unlink(name)
    ctypes.set_errno(problem)
    return _checked(made)


def terminals() -> object:
    """A pseudo-terminal."""
    return pty.openpty()


held: list[object] = []


def _checked(answer: int) -> int:
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def take(one: Callable[[], object], most: int) -> int:
    """Take until it is refused, and count."""
    for number in range(most):
        try:
            held.append(one())
        except OSError:
            return number
    return most


def main() -> None:
    """Take it as this user and, where that is root, as others too."""
    name, most = sys.argv[1], int(sys.argv[2])
    taken = take(globals()[name], most)
    readers = []
    for user in range(1, 1 + OTHERS if os.geteuid() == 0 else 1):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setuid(user)
            os.write(writer, str(take(globals()[name], most)).encode())
            sys.stdin.read()
            os._exit(0)
        readers.append(reader)
    taken += sum(int(os.read(reader, 20)) for reader in readers)
    print(taken, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
