"""The scripts, used as an operator would."""

import os
import socket
import subprocess
import time
from pathlib import Path

HOME = Path("/home/user/service")


def run(script):
    log = subprocess.DEVNULL
    return subprocess.run(["sh", str(HOME / script)], cwd="/", stdout=log, stderr=log, timeout=30).returncode


def ask(text):
    with socket.create_connection(("127.0.0.1", int((HOME / "port").read_text())), timeout=5) as client:
        client.sendall(text)
        return client.recv(100)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_start_and_stop():
    try:
        assert run("start.sh") == 0
        assert ask(b"hello\n") == b"HELLO\n"
        pid = int((HOME / "server.pid").read_text())
        assert alive(pid)
        assert run("start.sh") == 0
        assert int((HOME / "server.pid").read_text()) == pid
    finally:
        assert run("stop.sh") == 0
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)
    assert not os.path.exists(HOME / "server.pid")
    assert (HOME / "server.log").exists()


def test_stop_when_nothing_runs():
    assert run("stop.sh") == 0
