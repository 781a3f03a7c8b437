"""The direct stream into a container: who is let in by it, what stays of it, and what happens without it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_exec import SandboxPool, Slot
from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.docker.dial_socket import DIRECTORY_PREFIX, SOCKET, DialSocket
from hermes_exec.backends.docker.stream import DockerStream
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
CALLER = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'me'); input()"


def directories() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"))


def stream_of(slot: Slot) -> object:
    connection = slot._scope.channel._connection
    assert connection is not None
    return connection._stream


def calling(dial_socket: DialSocket) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CALLER, str(dial_socket.directory / SOCKET)], stdin=subprocess.PIPE)


def test_only_the_process_that_is_waited_for_is_let_in() -> None:
    dial_socket = DialSocket()
    with calling(dial_socket) as other:
        time.sleep(0.3)
        with calling(dial_socket) as wanted:
            caller = dial_socket.accept(wanted.pid, 10)
            assert caller is not None
            assert caller.recv(9) == b"me"
            caller.close()
            assert dial_socket.accept(0, 0.2) is None
            assert wanted.stdin is not None
            wanted.stdin.close()
        assert dial_socket.accept(wanted.pid, 0.2) is None
        assert other.stdin is not None
        other.stdin.close()
    dial_socket.close()
    dial_socket.close()
    assert not dial_socket.directory.exists()


def test_nobody_else_on_this_host_gets_at_it() -> None:
    dial_socket = DialSocket()
    assert dial_socket.directory.parent.stat().st_mode & 0o077 == 0
    dial_socket.close()


def test_what_a_killed_driver_left_is_removed_by_the_next() -> None:
    script = (
        "import time; from hermes_exec.backends.docker.dial_socket import DialSocket;"
        "print(DialSocket().directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        left = Path(driver.stdout.readline().strip())
        DialSocket().close()
        assert left.is_dir()
        driver.send_signal(signal.SIGKILL)
        driver.wait(10)
        DialSocket().close()
    assert not left.parent.exists()


@pytest.mark.docker
@pytest.mark.loops
async def test_streams_go_past_the_daemon_where_files_are_shared(docker_image: Image) -> None:
    async with SandboxPool("docker", image=docker_image("busybox"), user="1000") as pool, pool.slot() as slot:
        assert type(stream_of(slot)) is FdStream
        assert directories() == []
        listed = await slot.run(["ls", "-A", "/hermes-exec/dial"])
        assert (listed.exit_code, listed.stdout) == (0, "")
        assert (await slot.run("touch /hermes-exec/dial/x")).exit_code != 0
        # A stream that breaks is replaced by one that the daemon carries.
        stream = stream_of(slot)
        assert isinstance(stream, FdStream)

        def cut(_name: str, _data: bytes) -> None:
            if stream_of(slot) is not stream:
                return  # this is what came by the next one
            with socket.socket(fileno=os.dup(stream._read_fd)) as same:
                same.shutdown(socket.SHUT_RDWR)

        result = await slot.run("echo here; sleep 1; echo there; echo once >> ran", on_output=cut)
        assert result.stdout == "here\nthere\n"
        await until(lambda: type(stream_of(slot)) is DockerStream)
        assert (await slot.files.read_text("ran")) == "once\n"


@pytest.mark.docker
async def test_a_runner_that_comes_too_late_costs_no_other_its_stream(
    docker_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, in_time = DialSocket.accept, iter([True, False, True])

    def accept_or_not(self: DialSocket, pid: int, patience_s: float) -> socket.socket | None:
        return accept(self, pid, patience_s if next(in_time) else 0)

    monkeypatch.setattr(DialSocket, "accept", accept_or_not)
    pool = SandboxPool("docker", image=docker_image("busybox"), slots_per_sandbox=1)
    async with pool, pool.slot() as first, pool.slot() as late, pool.slot() as last:
        assert [type(stream_of(slot)) for slot in (first, late, last)] == [FdStream, DockerStream, FdStream]
        assert (await late.run("echo here")).stdout == "here\n"


@pytest.mark.docker
async def test_streams_are_carried_by_the_daemon_where_no_socket_can_be(
    docker_image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with SandboxPool("docker", image=docker_image("busybox")) as pool, pool.slot() as slot:
        assert type(stream_of(slot)) is DockerStream
        assert (await slot.run("echo here")).stdout == "here\n"
    assert directories() == []
