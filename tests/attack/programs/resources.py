"""Attacks that use something up. Each says `ready` once it is at it, then `limit: …` when it was stopped by something
and `unlimited: …` when it got more than any limit of the tests allows. All stop by themselves.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, libc, main, refused, show, syscall

MIB = 1 << 20
MUCH_MIB = 768
SHARED_MIB = 128
"""More than what slots of one sandbox share in /dev/shm."""


def _hold(target: Target, what: str) -> None:
    show(what)
    time.sleep(float(target["seconds"]))


def memory(target: Target) -> None:
    held = []
    show("ready")
    try:
        for _ in range(MUCH_MIB // 16):
            held.append(bytearray(os.urandom(4096) * (16 * MIB // 4096)))
            time.sleep(0.01)
    except MemoryError:
        _hold(target, "limit: no more memory is given")
        return
    _hold(target, f"unlimited: {MUCH_MIB} MiB")


def shared_memory(target: Target) -> None:
    """Says `ready` when /dev/shm is full, or when it has taken more than slots share anywhere."""
    with open("/dev/shm/flood", "wb", buffering=0) as file:
        stopped = _take(file, SHARED_MIB)
        show("ready")
        stopped = stopped or _take(file, MUCH_MIB - SHARED_MIB)
        _hold(target, stopped or f"unlimited: {MUCH_MIB} MiB")


def _take(file: io.FileIO, most_mib: int) -> str:
    """Write so much more, and tell what stopped it; empty when nothing did."""
    try:
        for _ in range(most_mib):
            file.write(bytes(MIB))
    except OSError as error:
        return f"limit: {file.tell() // MIB} MiB in /dev/shm, then {errno.errorcode[error.errno or 0]}"
    return ""


def count_processes(target: Target) -> None:
    """Not an attack: at most so many processes, to see whether there is a limit below it."""
    children = []
    for _ in range(int(target["most"])):
        try:
            pid = os.fork()
        except OSError:
            show("limit: found")
            break
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        children.append(pid)
    for pid in children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def fork_bomb(target: Target) -> None:
    show("ready")
    end = time.monotonic() + float(target["seconds"])
    with contextlib.suppress(OSError):
        os.setsid()
    stopped = False
    while time.monotonic() < end:
        try:
            os.fork()
        except OSError:
            if not stopped:
                stopped = True
                with contextlib.suppress(OSError):
                    os.write(1, b"limit: no more processes\n")


def threads(target: Target) -> None:
    show("ready")
    threading.stack_size(64 << 10)
    for number in range(4000):
        try:
            threading.Thread(target=time.sleep, args=(float(target["seconds"]),), daemon=True).start()
        except RuntimeError:
            _hold(target, f"limit: {number} threads")
            return
    show("unlimited: 4000 threads")


def descriptors(target: Target) -> None:
    show("ready")
    try:
        for _ in range(30_000):
            os.open("/dev/null", os.O_RDONLY)
    except OSError as error:
        _hold(target, f"limit: {errno.errorcode[error.errno or 0]}")
        return
    show("unlimited: 30,000 descriptors")


def burn(target: Target) -> None:
    for _ in range(7):
        if os.fork() == 0:
            break
    else:
        show("ready")
    end = time.monotonic() + float(target["seconds"])
    while time.monotonic() < end:
        sum(range(10_000))
    with contextlib.suppress(OSError):
        os.write(1, b"limit: time\n")


def flood(target: Target) -> None:
    show("ready")
    block = b"x" * MIB
    end = time.monotonic() + float(target["seconds"])
    while time.monotonic() < end:
        os.write(1, block)


def short_lived(target: Target) -> None:
    """Two workers start and end processes; every second one is an orphan in a session of its own."""
    show("ready")
    workers = [_worker(int(target["most"]) // 2) for _ in range(2)]
    started = 0
    for pid, reader in workers:
        with os.fdopen(reader) as counted:
            started += int(counted.read() or 0)
        os.waitpid(pid, 0)
    show(f"limit: {started} processes came and went")


def _worker(most: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    started = 0
    while started < most:
        with contextlib.suppress(OSError):
            child = os.fork()
            if child == 0:
                try:
                    os.setsid()
                    os.fork()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            started += 2
    os.write(writer, str(started).encode())
    os._exit(0)


def disk(target: Target) -> None:
    _fill(target, 64 * 1024)


def inodes(target: Target) -> None:
    _fill(target, 0)


def _fill(target: Target, size: int) -> None:
    show("ready")
    block, number = b"x" * size, 0
    try:
        for number in range(200_000):
            pathlib.Path(f"f-{number}").write_bytes(block)
    except OSError as error:
        _hold(target, f"unlimited: the file system is full after {number} files ({errno.errorcode[error.errno or 0]})")
        return
    show("unlimited: 200,000 files")


def entries(target: Target) -> None:
    """One directory with as many entries as are wanted; names cost less than files, and are as many to go through."""
    show("ready")
    os.mkdir("many")
    directory, source = os.open("many", os.O_RDONLY), ""
    for number in range(int(target["entries"])):
        if number % 50_000 == 0:
            source = f"{number}"
            os.close(os.open(source, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        else:
            os.link(source, f"{number}", src_dir_fd=directory, dst_dir_fd=directory)
    show(f"limit: {len(os.listdir('many'))} entries")


def many_entries(target: Target) -> None:
    """A directory with very many entries and one that is very deep, which others have to list and remove."""
    show("ready")
    os.makedirs("many", exist_ok=True)
    for number in range(20_000):
        os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
    deep = os.open(".", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=deep)
        below = os.open("deep", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    show("limit: done")


def kernel_limits(target: Target) -> None:
    """What the kernel counts by user: descriptors in flight, inotify instances, message queues, pipes."""
    held = [*_in_flight(), *_watches(), *_queues(), *_pipes()]
    show(f"ready with {len(held)}")
    # The neighbour looks meanwhile for what it lacks; that it has looked may be what cannot be written.
    until = time.monotonic() + 15
    while not os.path.exists("looked") and time.monotonic() < until:
        time.sleep(0.05)
    show(f"limit: {len(held)} objects")


def _in_flight() -> list[object]:
    held: list[object] = []
    packet = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))]
    with refused():
        for _ in range(100):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            held.append(ends)
            ends[0].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(100):
                    ends[0].sendmsg([b"x"], packet)
    return held


def descriptors_under_way(target: Target) -> None:
    """As many as the kernel allows, kept until we are ended."""
    held = _in_flight()
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    except OSError as error:
        show(f"ready: {errno.errorcode[error.errno or 0]}")
    else:
        show(f"ready: {len(held)}")
    time.sleep(600)


def _watches() -> list[object]:
    held: list[object] = []
    with refused():
        held.extend(libc("inotify_init") for _ in range(200))
    return held


def _queues() -> list[object]:
    held: list[object] = []
    with refused():
        held.extend(syscall("mq_open", b"flood-%d" % number, os.O_CREAT | os.O_RDWR, 0o600, 0) for number in range(200))
    return held


def _pipes() -> list[object]:
    held: list[object] = []
    with refused():
        for _ in range(60):
            ends = os.pipe()
            held.append(ends)
            fcntl.fcntl(ends[1], 1031, MIB)
    return held


def has_its_own(target: Target) -> None:
    """Not an attack: whether what the kernel counts by user or by sandbox can still be had."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    attempts: dict[str, Callable[[], object]] = {
        "descriptors cannot be sent": lambda: ends[0].sendmsg(
            [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
        ),
        "no inotify instance": lambda: libc("inotify_init"),
        "no space in /dev/shm": lambda: pathlib.Path("/dev/shm/mine").write_bytes(bytes(1 << 16)),
        "no message queue": lambda: syscall("mq_open", b"mine", os.O_CREAT | os.O_RDWR, 0o600, 0),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except OSError as error:
            show(f"lacks: {what}: {errno.errorcode[error.errno or 0]}")
    with contextlib.suppress(OSError):
        os.unlink("/dev/shm/mine")
    ctypes.CDLL(None).mq_unlink(b"/mine")


main(globals())
