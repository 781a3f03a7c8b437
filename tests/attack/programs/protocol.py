"""Attacks on the runner by its own socket."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, main, refused, show

GARBAGE = (
    b"",
    b"\0" * 4096,
    os.urandom(4096),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    b"\0\0\xff\xff" + b"x" * 65536,
    b'\0\0\0\x40{"method": "slot.create", "params": {"slot": "s0"}}',
    b"\x7f\xff\xff\xff",
)


def _places() -> list[str]:
    found = []
    for start in (os.getcwd(), os.environ["HOME"], "/hermes-exec/state/base/x"):
        for directory in pathlib.Path(start).parents:
            found += [str(directory / "run" / "socket"), str(directory / "socket")]
    with refused():
        for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
            if "hermes" in line:
                found.append(line.split()[-1].replace("@", "\0", 1))
    return sorted(set(found))


def _connect(place: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(2)
    peer.connect(place)
    return peer


def runner_socket(target: Target) -> None:
    held = []
    for place in _places():
        with refused():
            for garbage in GARBAGE:
                with _connect(place) as peer:
                    show(f"reached {place!r}")
                    peer.sendall(garbage)
                    with contextlib.suppress(TimeoutError):
                        peer.settimeout(0.2)
                        peer.recv(4096)
            held += [_connect(place) for _ in range(100)]
    time.sleep(1)
    show(f"held {len(held)}")


main(globals())
