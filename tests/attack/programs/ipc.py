"""Attacks through what processes share besides files."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, main, read, refused, show, syscall, victims, worked

TIOCSTI, TIOCLINUX = 0x5412, 0x541C


def _dial(name: str | bytes, kind: int = socket.SOCK_STREAM) -> None:
    with refused(), socket.socket(socket.AF_UNIX, kind) as peer:
        peer.settimeout(3)
        if kind == socket.SOCK_DGRAM:
            peer.bind(b"\0attacker-%d" % os.getpid())
            peer.sendto(b"x", name)
        else:
            peer.connect(name)
        show(peer.recv(200))


def abstract_socket(target: Target) -> None:
    _dial("\0" + target["abstract"])


def abstract_datagrams(target: Target) -> None:
    _dial("\0" + target["abstract_datagrams"], socket.SOCK_DGRAM)


def path_socket(target: Target) -> None:
    _dial(target["unix"])
    for pid in victims(target):
        _dial(f"/proc/{pid}/root{target['unix']}")


def named_pipe(target: Target) -> None:
    with refused():
        show(read(target["fifo"]))


def shared_directories(target: Target) -> None:
    for key in ("shm", "tmp", "var_tmp"):
        for path in target.get(key, ()):
            with refused():
                show(read(path))
            with refused():
                show(" ".join(os.listdir(os.path.dirname(path))))


def system_v_memory(target: Target) -> None:
    numbers = []
    with refused():
        numbers.append(syscall("shmget", int(target["shm_key"]), 0, 0))
    with refused():
        numbers += [int(line.split()[1]) for line in read("/proc/sysvipc/shm").decode().splitlines()[1:]]
    for number in numbers:
        with refused():
            at = syscall("shmat", number, 0, 0o10000)
            show(ctypes.string_at(at, 100))


def system_v_messages(target: Target) -> None:
    with refused():
        number = syscall("msgget", int(target["msg_key"]), 0)
        buffer = ctypes.create_string_buffer(200)
        syscall("msgrcv", number, buffer, 64, 0, 0o4000)
        show(buffer.raw)


def system_v_semaphores(target: Target) -> None:
    with refused():
        number = syscall("semget", int(target["sem_key"]), 1, 0)
        worked(f"semaphore {number} was found")
        syscall("semctl", number, 0, 0)


def posix_queue(target: Target) -> None:
    with refused():
        queue = syscall("mq_open", target["queue"].encode(), os.O_RDWR | os.O_NONBLOCK, 0, 0)
        buffer = ctypes.create_string_buffer(8192)
        syscall("mq_timedreceive", queue, buffer, 8192, 0, 0)
        show(buffer.raw)


def keyrings(target: Target) -> None:
    """Keys by their numbers, by name, by what /proc/keys lists, and on the keyring that we were started with."""
    numbers = [int(number) for number in target.get("keys", {}).values()]
    with refused():
        numbers += [int(line.split()[0], 16) for line in read("/proc/keys").decode().splitlines()]
    with refused():
        numbers.append(syscall("request_key", b"user", f"attack-{target['mark']}".encode(), 0, 0))
    for ring in (-3, -4, -5):
        with refused():
            buffer = (ctypes.c_int * 256)()
            size = syscall("keyctl", 11, ring, buffer, ctypes.sizeof(buffer))
            numbers += buffer[: size // 4]
    for number in numbers:
        with refused():
            buffer2 = ctypes.create_string_buffer(1000)
            size = syscall("keyctl", 11, number, buffer2, 1000)
            show(buffer2.raw[:size])


def type_into_terminals(target: Target) -> None:
    """Put a command into the input of a terminal that is not ours (TIOCSTI), or paste a selection (TIOCLINUX)."""
    places = ["/dev/tty", "/dev/console", *(f"/dev/tty{number}" for number in range(3))]
    with refused():
        places += [f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name.isdigit()]
    for pid in victims(target):
        places += [f"/proc/{pid}/fd/{number}" for number in range(3)]
    for place in places:
        for flags in (os.O_RDWR, os.O_RDONLY):
            with refused():
                terminal = os.open(place, flags | os.O_NOCTTY | os.O_NONBLOCK)
                try:
                    fcntl.ioctl(terminal, TIOCSTI, b"\n")
                    worked(f"typed into {place}")
                finally:
                    os.close(terminal)


def locks(target: Target) -> None:
    """Lock a file that others wait for."""
    for path in [*target["paths"], "/etc/passwd", "/var/run/utmp"]:
        with refused():
            descriptor = os.open(path, os.O_RDWR)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            worked(f"{path} is locked")


main(globals())
