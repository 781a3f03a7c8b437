"""Attacks on processes that are not ours."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, libc, main, read, refused, show, syscall, victims, worked

PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_DETACH, PTRACE_PEEKDATA = 16, 0x4206, 17, 2
F_SETOWN, F_SETSIG, O_ASYNC = 8, 10, 0o20000


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with refused():
            os.kill(pid, number)
        with refused():
            os.killpg(pid, number)
        with refused():
            syscall("tgkill", pid, pid, number)
        with refused():
            descriptor = syscall("pidfd_open", pid, 0)
            syscall("pidfd_send_signal", descriptor, number, 0, 0)


def signals(target: Target) -> None:
    _signal_all(victims(target), signal.SIGKILL)
    _signal_all(victims(target), signal.SIGSTOP)


def signals_to_all(target: Target) -> None:
    """To every process that is seen; only fired where none of them can be the host's."""
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        _signal_all(victims({}), number)


def signals_by_descriptor(target: Target) -> None:
    """Have the kernel send the signal: as owner of a pipe's readiness."""
    for pid in victims(target):
        with refused():
            import fcntl

            reader, writer = os.pipe()
            fcntl.fcntl(reader, F_SETOWN, pid)
            fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | O_ASYNC)
            os.write(writer, b"x")


def kill_everybody(target: Target) -> None:
    os.kill(-1, signal.SIGKILL)


def trace(target: Target) -> None:
    for pid in victims(target):
        for way in (PTRACE_SEIZE, PTRACE_ATTACH):
            with refused():
                syscall("ptrace", way, pid, 0, 0)
                worked(f"tracing process {pid}")
                if way == PTRACE_ATTACH:
                    os.waitpid(pid, 0x40000000)
                    with refused():
                        address = int(target["address"])
                        word = ctypes.c_long()
                        data = b""
                        for offset in range(0, 32, 8):
                            syscall("ptrace", PTRACE_PEEKDATA, pid, address + offset, ctypes.byref(word))
                            data += bytes(word)
                        show(data)
                syscall("ptrace", PTRACE_DETACH, pid, 0, 0)


def read_memory_by_call(target: Target) -> None:
    class Range(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    for pid in victims(target):
        with refused():
            buffer = ctypes.create_string_buffer(64)
            here, there = Range(ctypes.addressof(buffer), 64), Range(int(target["address"]), 64)
            syscall("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            show(buffer.raw)
            worked(f"memory of process {pid}")


def read_memory_by_file(target: Target) -> None:
    for pid in victims(target):
        with refused(), open(f"/proc/{pid}/mem", "rb") as memory:
            worked(f"memory of process {pid}")
            memory.seek(int(target["address"]))
            show(memory.read(64))


def read_environment(target: Target) -> None:
    for pid in victims(target):
        with refused():
            show(read(f"/proc/{pid}/environ"))
            worked(f"environment of process {pid}")


def read_command_line(target: Target) -> None:
    for pid in victims(target):
        with refused():
            show(read(f"/proc/{pid}/cmdline"))


def steal_descriptor(target: Target) -> None:
    for pid in victims(target):
        with refused():
            owner = syscall("pidfd_open", pid, 0)
            for number in range(64):
                with refused():
                    taken = syscall("pidfd_getfd", owner, number, 0)
                    worked(f"descriptor {number} of process {pid}")
                    with contextlib.suppress(OSError):
                        show(os.pread(taken, 100, 0))


def slow_down(target: Target) -> None:
    for pid in victims(target):
        with refused():
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        with refused():
            os.setpriority(os.PRIO_PGRP, pid, 19)
        with refused():
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        with refused():
            os.sched_setaffinity(pid, {0})
        with refused():
            syscall("ioprio_set", 1, pid, 3 << 13)
        with refused():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
        with refused():
            pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        with refused():
            pathlib.Path(f"/proc/{pid}/autogroup").write_text("19")
    for uid in {os.getuid(), *map(int, target.get("uids", ()))}:
        with refused():
            os.setpriority(os.PRIO_USER, uid, 19)
        with refused():
            syscall("ioprio_set", 3, uid, 3 << 13)


def speed_up(target: Target) -> None:
    """Make ourselves more important than everybody else."""
    with refused():
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        worked("nice -20")
    for policy in (os.SCHED_FIFO, os.SCHED_RR):
        with refused():
            os.sched_setscheduler(0, policy, os.sched_param(50))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            worked("a real-time class")
    with refused():
        syscall("ioprio_set", 1, 0, 1 << 13)
        worked("real-time input and output")
    with refused():
        pathlib.Path("/proc/self/oom_score_adj").write_text("-1000")
        worked("exempt from being ended when memory runs out")


def outlive(target: Target) -> None:
    """Leave processes that a kill may miss: daemons, stopped ones, ones that ignore signals, ones that always fork."""
    for ignores in (False, True):
        for stopped in (False, True):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.environ.clear()
                    if ignores:
                        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                            signal.signal(number, signal.SIG_IGN)
                    if stopped:
                        with refused():
                            os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(300)
                os._exit(0)
    if os.fork() == 0:  # a process that is never long the same
        os.setsid()
        with contextlib.suppress(OSError):
            libc("prctl", 36, 1, 0, 0, 0)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
        os._exit(0)
    time.sleep(0.2)


def use_up_numbers(target: Target) -> None:
    """Have processes come and go until one has a number beyond."""
    while (pid := _one()) <= int(target["beyond"]):
        os.waitpid(pid, 0)
    os.waitpid(pid, 0)
    show(f"at {pid}")


def take_number(target: Target) -> None:
    """Have processes come and go until one has this number; that one stays."""
    wanted, end = int(target["number"]), time.monotonic() + 60
    while time.monotonic() < end:
        pid = _one(stays=wanted)
        if pid == wanted:
            show(f"ready: {pid}")
            _, status = os.waitpid(pid, 0)
            worked(f"the process that has the number was ended: {status}")
            return
        os.waitpid(pid, 0)
    show("limit: the number did not come round")


def _one(stays: int = 0) -> int:
    pid = os.fork()
    if pid == 0:
        if os.getpid() == stays:
            os.setsid()
            time.sleep(600)
        os._exit(0)
    return pid


main(globals())
