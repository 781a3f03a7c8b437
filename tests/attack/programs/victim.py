"""What is attacked: a process that keeps a secret in every place where others might find one.

It prints where (never the secret) as one line of JSON, and answers `ping` on its standard input with `pong`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import syscall

SECRET = os.environ["ATTACK_SECRET"].encode()
MARK = sys.argv[1]
IPC_CREAT, OPEN_TO_ALL = 0o1000, 0o666
FALLBACKS: dict[str, Any] = {"queue": f"attack-{MARK}", "keys": {}, "tcp6": 1, "deleted": None}
kept: list[Any] = []


def files(directory: str) -> list[str]:
    path = f"{directory}/secret-{MARK}"
    pathlib.Path(path).write_bytes(SECRET)
    os.chmod(path, OPEN_TO_ALL)
    return [path]


def deleted() -> None:
    path = f"{os.environ['TMPDIR']}/deleted-{MARK}"
    file = open(path, "wb+")  # noqa: SIM115 - stays open
    file.write(SECRET)
    file.flush()
    os.unlink(path)
    kept.append(file)


def serve(listener: socket.socket) -> None:
    def answer() -> None:
        while True:
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(SECRET)

    listener.listen(16)
    threading.Thread(target=answer, daemon=True).start()


def serve_datagrams(server: socket.socket) -> None:
    def answer() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, peer = server.recvfrom(16)
                server.sendto(SECRET, peer)

    threading.Thread(target=answer, daemon=True).start()


def tcp(family: int, host: str) -> int:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    serve(listener)
    return int(listener.getsockname()[1])


def udp() -> int:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    serve_datagrams(server)
    return int(server.getsockname()[1])


def unix(name: str, kind: int = socket.SOCK_STREAM) -> str:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(name)
    if not name.startswith("\0"):
        os.chmod(name, OPEN_TO_ALL)
    if kind == socket.SOCK_STREAM:
        serve(listener)
    else:
        serve_datagrams(listener)
    return name


def key_number() -> int:
    return int(MARK[-7:], 16)


def shared_memory() -> int:
    key = key_number()
    identifier = syscall("shmget", key, 4096, IPC_CREAT | OPEN_TO_ALL)
    at = syscall("shmat", identifier, 0, 0)
    ctypes.memmove(ctypes.c_void_p(at), SECRET, len(SECRET))
    return key


def messages() -> int:
    class Message(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_long), ("text", ctypes.c_char * 64))

    key = key_number()
    identifier = syscall("msgget", key, IPC_CREAT | OPEN_TO_ALL)
    message = Message(1, SECRET)
    if ctypes.CDLL(None).msgsnd(identifier, ctypes.byref(message), 64, 0) != 0:
        raise OSError("msgsnd")
    return key


def semaphores() -> int:
    key = key_number()
    syscall("semget", key, 1, IPC_CREAT | OPEN_TO_ALL)
    return key


def posix_queue() -> str:
    name = f"attack-{MARK}"
    os.umask(0)
    small = (ctypes.c_long * 8)(0, 1, 64, 0)
    queue = syscall("mq_open", name.encode(), os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, OPEN_TO_ALL, ctypes.byref(small))
    syscall("mq_timedsend", queue, SECRET, len(SECRET), 1, None)
    kept.append(queue)
    return name


def keys() -> dict[str, int]:
    """A key on the session's and one on the user's keyring, both open to whoever possesses them."""
    rings = {"session": -3, "user": -4}
    return {
        ring: syscall("add_key", b"user", f"attack-{MARK}".encode(), SECRET, len(SECRET), number)
        for ring, number in rings.items()
    }


def fifo() -> str:
    path = f"{os.environ['TMPDIR']}/fifo-{MARK}"
    os.mkfifo(path)
    os.chmod(path, OPEN_TO_ALL)
    kept.append(os.open(path, os.O_RDWR))
    os.write(kept[-1], SECRET)
    return path


def main() -> None:
    places: dict[str, Any] = {"pid": os.getpid(), "address": ctypes.addressof(ctypes.c_char_p(SECRET))}
    memory = ctypes.create_string_buffer(SECRET)
    kept.append(memory)
    places["address"] = ctypes.addressof(memory)
    plans: dict[str, Callable[[], Any]] = {
        "workspace": lambda: files(os.getcwd()),
        "home": lambda: files(os.environ["HOME"]),
        "tmpdir": lambda: files(os.environ["TMPDIR"]),
        "tmp": lambda: files("/tmp"),
        "var_tmp": lambda: files("/var/tmp"),
        "shm": lambda: files("/dev/shm"),
        "deleted": deleted,
        "tcp": lambda: tcp(socket.AF_INET, "127.0.0.1"),
        "tcp6": lambda: tcp(socket.AF_INET6, "::1"),
        "udp": udp,
        "abstract": lambda: unix(f"\0attack-{MARK}")[1:],
        "abstract_datagrams": lambda: unix(f"\0attack-datagrams-{MARK}", socket.SOCK_DGRAM)[1:],
        "unix": lambda: unix(f"{os.environ['TMPDIR']}/u-{MARK}"),
        "shm_key": shared_memory,
        "msg_key": messages,
        "sem_key": semaphores,
        "queue": posix_queue,
        "keys": keys,
        "fifo": fifo,
    }
    missing = {}
    for name, plan in plans.items():
        try:
            places[name] = plan()
        except OSError as error:  # told, and attacked all the same
            places[name] = FALLBACKS.get(name, [])
            missing[name] = str(error)
    print(json.dumps({**places, "missing": missing}), flush=True)
    for line in sys.stdin:
        print(line.strip().replace("ping", "pong"), flush=True)


main()
