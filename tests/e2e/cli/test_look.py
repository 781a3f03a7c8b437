"""`hermes-exec shell --slot` and `ps`: looking into a slot that another process holds, without touching it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import anyio
import docker
import pytest

from hermes_exec import SandboxPool, SlotClosed, blocking
from hermes_exec.cli.observe import look
from hermes_exec.pool.private_directory import pool_directory
from tests.conftest import BackendCase
from tests.e2e.cli.conftest import Cli, environment
from tests.e2e.cli.test_shell import Terminal

NOBODY = 65534


@pytest.fixture
def slot(backend: BackendCase) -> Iterator[blocking.Slot]:
    with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        yield slot


class Viewer:
    """`hermes-exec shell --slot`, whose output is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen = ""

    def until(self, text: str) -> str:
        """Read up to a line with this text; gives what came before it and the line."""
        assert self.process.stdout is not None
        begun = len(self.seen)
        while text not in self.seen[begun:]:
            line = self.process.stdout.readline()
            assert line, f"{text!r} did not come; seen: {self.seen!r}"
            self.seen += line
        return self.seen[begun:]


@contextmanager
def viewing(cli: Cli, slot: str) -> Iterator[Viewer]:
    with cli.start("shell", "--slot", slot) as process:
        viewer = Viewer(process)
        try:
            assert process.stderr is not None
            assert "read-only" in process.stderr.readline()
            yield viewer
        finally:
            process.kill()


def test_what_commands_and_processes_print_is_shown(cli: Cli, slot: blocking.Slot) -> None:
    background = slot.spawn("read line; echo got $line; sleep 1000", stdin=True)
    slot.run("echo before anybody looked")
    with viewing(cli, slot.id) as viewer:
        viewer.until("read line; echo got $line; sleep 1000")
        slot.run("echo out; echo err >&2; exit 7")
        shown = viewer.until("ended with 7")
        assert "$ echo out; echo err >&2; exit 7" in shown
        assert {"out", "err"} <= set(shown.splitlines())
        assert background.stdin is not None
        background.stdin.send(b"typed\n")
        viewer.until("got typed")
        with slot.session() as session:
            session.run("echo in a session")
        viewer.until("in a session")
        assert "before anybody looked" not in viewer.seen


def test_it_ends_when_the_slot_is_released(cli: Cli, backend: BackendCase) -> None:
    with SandboxPool(backend.backend, **backend.options) as pool:
        slot = pool.acquire()
        with viewing(cli, slot.id) as viewer:
            slot.run("echo right before; exit 3")
            slot.reset()
            assert "right before\n==> " in viewer.until("the slot was reset")
            slot.run("echo after the reset")
            viewer.until("after the reset")
            slot.run("echo last words; exit 5")
            pool.release(slot)
            assert "ended with 5" in viewer.until("the slot was released")
            assert viewer.process.wait(60) == 0


@pytest.mark.docker
def test_death_of_the_sandbox_is_told(cli: Cli, docker_image: Callable[[str], str]) -> None:
    with SandboxPool("docker", image=docker_image("busybox")) as pool:
        slot = pool.acquire()
        with viewing(cli, slot.id) as viewer:
            with closing(docker.from_env()) as client:
                client.containers.get(slot.sandbox).kill()
            assert viewer.process.wait(60) == 3
            assert viewer.process.stderr is not None
            assert "cannot be reached" in viewer.process.stderr.read()


def test_processes_can_be_looked_at(cli: Cli, slot: blocking.Slot) -> None:
    slot.spawn(["sleep", "1234.5"])
    assert "sleep 1234.5" in cli.run("shell", "--slot", slot.id, "ps").stdout


@pytest.mark.parametrize("words", [("rm", "kept"), ("sh",), ("cat", "kept"), ("ps", "-a")])
def test_nothing_else_can_be_asked(cli: Cli, words: tuple[str, ...]) -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        slot.files.write_text("kept", "x")
        done = cli.run("shell", "--slot", slot.id, *words)
        assert (done.returncode, "is read-only" in done.stderr) == (2, True)
        assert slot.files.read_text("kept") == "x"


def test_options_of_a_new_slot_do_not_go_with_one_that_is_there(cli: Cli, tmp_path: Path) -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        for option in (["-b", "docker"], ["--trace", str(tmp_path / "trace")], ["-o", "min_isolation=none"]):
            done = cli.run("shell", "--slot", slot.id, *option)
            assert (done.returncode, "options of a new one" in " ".join(done.stderr.split())) == (2, True)


def test_it_ends_quietly_when_nobody_reads_it(cli: Cli) -> None:
    with SandboxPool("local") as pool, pool.slot() as slot, viewing(cli, slot.id) as viewer:
        assert viewer.process.stdout is not None
        viewer.process.stdout.close()
        for _ in range(20):
            slot.run("echo tick")
        assert viewer.process.wait(30) == 1
        assert viewer.process.stderr is not None
        assert viewer.process.stderr.read() == ""


def test_a_holder_that_has_gone_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def found(_: str) -> Path:
        return tmp_path / "gone"

    monkeypatch.setattr(look, "_find", found)
    for words in ([], ["ps"]):
        with pytest.raises(SlotClosed, match="is gone"):
            anyio.run(look.look, "a slot", words)


def test_ps_tells_the_slots_and_a_wrong_one_is_told_the_nearest(cli: Cli) -> None:
    with SandboxPool("local") as pool, pool.slots(2) as slots:
        ids = {slot.id for slot in slots}
        (sandbox,) = [
            sandbox
            for sandbox in cli.json("ps", "--json", "--backend", "local")
            if sandbox["sandbox"] == slots[0].sandbox
        ]
        assert set(sandbox["slots"]) == ids
        done = cli.run("shell", "--slot", f"{slots[0].id}x")
        assert done.returncode == 2
        assert any(f"did you mean {one!r}?" in " ".join(done.stderr.split()) for one in ids)
    assert cli.run("shell", "--slot", slots[0].id).returncode == 2


def test_one_who_looks_and_does_not_read_holds_nothing_up(cli: Cli) -> None:
    with SandboxPool("local") as pool, pool.slot() as slot, viewing(cli, slot.id) as viewer:
        viewer.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert slot.run("head -c 30000000 /dev/zero | tr '\\0' x", timeout_s=60).stdout_total_bytes == 30_000_000
        slot.run("echo done")
        assert time.monotonic() - begun < 55
        viewer.process.send_signal(signal.SIGCONT)
        viewer.until("arrived too fast to be shown")


def test_terminal_of_one_who_looks_is_not_written_to_by_the_slot() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        terminal = Terminal(["shell", "--slot", slot.id])
        try:
            terminal.expect("read-only")
            slot.run(r"printf 'clear\033[2J\233\r\nover\rwritten é\n'")
            terminal.expect("clear␛[2J")
            terminal.expect("over\r\nwritten é\r\n")
            terminal.type("\x03")
            assert terminal.ended() == 130
        finally:
            terminal.close()


def test_socket_is_private_and_gone_with_its_pool() -> None:
    with SandboxPool("local") as pool, pool.slot():
        (mine,) = pool_directory().glob(f"{os.getpid()}-*.pool")
        assert stat.S_IMODE(mine.stat().st_mode) == 0o600
        assert stat.S_IMODE(mine.parent.stat().st_mode) == 0o700
    assert not mine.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, socket, sys; user = int(sys.argv[2]); os.setresuid(user, user, user)\n"
    code += "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
    code += 's.sendall(b\'{"do": "slots"}\\n\'); print(s.recv(99))'

    def ask(path: Path, user: int) -> str:
        asked = [sys.executable, "-c", code, str(path), str(user)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
        return (done.stdout or done.stderr).strip().splitlines()[-1]

    with tempfile.TemporaryDirectory(dir="/tmp") as apart:
        os.chmod(apart, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", apart)
        with SandboxPool("local", base_dir="/tmp") as pool, pool.slot():
            (mine,) = pool_directory().glob("*.pool")
            assert "PermissionError" in ask(mine, NOBODY)
            mine.parent.chmod(0o755)
            mine.chmod(0o666)
            assert not ask(mine, NOBODY).startswith("b'{")
            assert ask(mine, 0).startswith("b'{")


def test_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool_directory().mkdir()
    pool_directory().chmod(0o777)
    with SandboxPool("local", base_dir="/tmp") as pool, pool.slot() as slot:
        assert slot.run("echo works").stdout == "works\n"
        assert [*pool_directory().iterdir()] == []


def test_socket_of_a_killed_process_is_forgotten(cli: Cli) -> None:
    code = "from hermes_exec import SandboxPool\nwith SandboxPool('local', lease_s=2) as pool, pool.slot() as slot:\n"
    code += "    print(slot.id, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        slot = process.stdout.readline().strip()
        left = next(pool_directory().glob(f"{process.pid}-*.pool"))
        with viewing(cli, slot) as viewer:
            process.kill()
            assert viewer.process.wait(60) == 0
            assert viewer.process.stderr is not None
            assert "is gone" in viewer.process.stderr.read()
    assert left.is_socket()
    assert cli.run("shell", "--slot", slot).returncode == 2
    assert not left.exists()


GARBAGE = (b"\n", b"[]\n", b"{}\n", b'{"do": "read"}\n', b'{"do": 1}\n', b"\xff\n", b"[" * 60_000 + b"\n")


@pytest.mark.parametrize("sent", GARBAGE, ids=lambda sent: repr(sent[:20]))
def test_garbage_is_answered_and_the_pool_goes_on(sent: bytes) -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        (mine,) = pool_directory().glob(f"{os.getpid()}-*.pool")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(mine))
            client.sendall(b"x" * 100_000)  # a line that is too long ends the connection
            with suppress(ConnectionError):
                assert client.recv(1) == b""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(mine))
            client.sendall(sent + b'{"do": "slots"}\n')
            answers = client.makefile("rb")
            assert answers.readline().startswith(b'{"error": ')
            assert slot.id.encode() in answers.readline()
