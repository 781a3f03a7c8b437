"""What all programs of the attacker use: its target, system calls without wrappers, and how it says what it got.

An attack is a function of one of these programs, named on the command line. What it prints is loot: the judge looks
for secrets in it and for lines that begin with `worked`. An OSError is what should happen.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
# Those that the C library has no function for.
SYSCALLS = {
    "x86_64": {
        "ptrace": 101,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "ioprio_set": 251,
        "shmget": 29,
        "shmat": 30,
        "msgget": 68,
        "msgrcv": 70,
        "semget": 64,
        "semctl": 66,
        "mq_open": 240,
        "mq_timedsend": 242,
        "mq_timedreceive": 243,
        "open_by_handle_at": 304,
        "name_to_handle_at": 303,
        "process_vm_readv": 310,
        "renameat2": 316,
        "bpf": 321,
        "open_tree": 428,
        "move_mount": 429,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pidfd_getfd": 438,
        "mount_setattr": 442,
        "perf_event_open": 298,
        "unshare": 272,
        "setns": 308,
        "pivot_root": 155,
        "finit_module": 313,
        "tgkill": 234,
        "rt_sigqueueinfo": 129,
        "io_uring_setup": 425,
    },
    "aarch64": {
        "ptrace": 117,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "ioprio_set": 30,
        "shmget": 194,
        "shmat": 196,
        "msgget": 186,
        "msgrcv": 188,
        "semget": 190,
        "semctl": 191,
        "mq_open": 180,
        "mq_timedsend": 182,
        "mq_timedreceive": 183,
        "open_by_handle_at": 265,
        "name_to_handle_at": 264,
        "process_vm_readv": 270,
        "renameat2": 276,
        "bpf": 280,
        "open_tree": 428,
        "move_mount": 429,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pidfd_getfd": 438,
        "mount_setattr": 442,
        "perf_event_open": 241,
        "unshare": 97,
        "setns": 268,
        "pivot_root": 41,
        "finit_module": 273,
        "tgkill": 131,
        "rt_sigqueueinfo": 138,
        "io_uring_setup": 425,
    },
}[platform.machine()]

Target = dict[str, Any]


def syscall(name: str, *arguments: Any) -> int:
    """A system call; OSError with its errno when it fails."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    ctypes.set_errno(0)
    answer = int(LIBC.syscall(ctypes.c_long(SYSCALLS[name]), *words))
    if answer == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return answer


def libc(name: str, *arguments: Any) -> int:
    """A function of the C library; OSError with errno when it returns -1."""
    ctypes.set_errno(0)
    answer = int(getattr(LIBC, name)(*arguments))
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return answer


def show(data: bytes | str) -> None:
    """Print what was got."""
    text = data if isinstance(data, str) else data.decode("latin-1")
    print(text.replace("\0", " "), flush=True)


def worked(what: str) -> None:
    """Say that something went through that should not have."""
    show(f"worked: {what}")


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """An attempt that the system may refuse; each attempt has one of its own, so that the next is made too."""
    try:
        yield
    except (OSError, ValueError) as error:
        print(f"refused: {error}", file=sys.stderr, flush=True)


def read(path: str, limit: int = 1 << 16) -> bytes:
    """The beginning of a file, without waiting where it is a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def ancestors() -> set[int]:
    """This process and those that it comes from, as far as they are this slot's own commands."""
    return {os.getpid(), os.getpgid(0), os.getsid(0)}


def others() -> list[int]:
    """Every process that is seen and is not this one."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in ancestors())


def victims(target: Target) -> list[int]:
    """The numbers under which the target may be known here; where it names none, whatever else is seen."""
    if "pids" not in target:
        return others()
    above = parents()
    return [
        pid
        for pid in map(int, target["pids"])
        if pid not in ancestors() and not any(os.path.exists(f"/proc/{one}/task/{pid}") for one in above)
    ]


def parents() -> set[int]:
    """What this process comes from, up to the first: a victim's number may by chance be that of one of its threads."""
    found, pid = {1}, os.getppid()
    while pid > 1:
        found.add(pid)
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return found


def main(program: dict[str, Any]) -> None:
    """Run the function of a program that the command line names on the target that it describes."""
    attack: Callable[[Target], None] = program[sys.argv[1]]
    with refused():
        attack(json.loads(sys.argv[2]))
    show("done")
