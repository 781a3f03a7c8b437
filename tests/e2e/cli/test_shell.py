"""`hermes-exec shell` in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.cli.conftest import PROGRAM, Cli, environment

DEADLINE_S = 60.0


class Terminal:
    """The user's side of a pseudo terminal in which the program runs."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.fd, side = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(side)
        self.side = side
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            env=environment() | {"TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; seen: {self.seen!r}"
            self.seen += os.read(self.fd, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def ended(self) -> int:
        """Drain until the program ends and return its exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; seen: {self.seen!r}"
            if select.select([self.fd], [], [], 0.05)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.ended()
        os.close(self.side)
        os.close(self.fd)


@pytest.fixture
def terminal(on: Sequence[str]) -> Iterator[Terminal]:
    opened = Terminal(["shell", *on])
    yield opened
    opened.close()


def test_keys_size_and_exit_code(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("echo $((6*7))-answer\r")
    terminal.expect("42-answer")
    terminal.type("stty size\r")
    terminal.expect("24 80")
    terminal.resize(40, 100)
    os.killpg(terminal.process.pid, signal.SIGWINCH)
    terminal.type('until [ "$(stty size)" = "40"" 100" ]; do sleep 0.1; done; stty size\r')
    terminal.expect("40 100")
    terminal.type("exit 3\r")
    assert terminal.ended() == 3
    assert termios.tcgetattr(terminal.side) == terminal.before


def test_control_c_goes_inside(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("sh -c \"echo be''fore; exec sleep 1000\"\r")
    terminal.expect("before")
    terminal.type("\x03")
    terminal.type("echo af''ter\r")
    terminal.expect("after")
    terminal.type("exit\r")
    assert terminal.ended() in {0, 130}


def test_escape_ends_a_program_that_ignores_everything(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("trap '' INT TERM HUP; echo dea''f; cat >/dev/null\r")
    terminal.expect("deaf")
    terminal.type("\r~.")
    assert terminal.ended() == 1
    assert termios.tcgetattr(terminal.side) == terminal.before


def test_background_job_does_not_hold_the_terminal(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("sleep 1000 & exit 5\r")
    assert terminal.ended() == 5


def test_sigterm_ends_and_restores_the_terminal(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("echo re''ady\r")
    terminal.expect("ready")
    terminal.process.terminate()
    assert terminal.ended() == 130
    assert termios.tcgetattr(terminal.side) == terminal.before


def test_end_of_input_ends_the_shell(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type("PS1='pro''mpt> '\r")  # typed before a prompt, it would be lost on any terminal
    terminal.expect("prompt> ")
    terminal.type("\x04")
    assert terminal.ended() == 0


FULL_SCREEN = r"printf '\033[?1049h\033[?25l\033[?2004hfull'; echo ' screen'; sleep 1000" + "\r"


def screen_is_left(seen: str) -> bool:
    return all(undone in seen for undone in ("\x1b[?1049l", "\x1b[?25h", "\x1b[?2004l"))


def test_screen_is_left_when_the_terminal_is_ended(terminal: Terminal) -> None:
    terminal.expect("isolation")
    terminal.type(FULL_SCREEN)
    terminal.expect("full screen")
    terminal.type("\r~.")
    assert terminal.ended() == 1
    assert screen_is_left(terminal.seen)


def test_screen_is_left_when_the_sandbox_is_killed() -> None:
    terminal = Terminal(["shell"])
    try:
        terminal.expect("isolation")
        terminal.type(FULL_SCREEN)
        terminal.expect("full screen")
        for thread in Path(f"/proc/{terminal.process.pid}/task").iterdir():
            for pid in (thread / "children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        assert terminal.ended() == 3
        assert screen_is_left(terminal.seen.partition("SandboxDied")[0])
        assert terminal.seen.count("SandboxDied") == 1
        assert termios.tcgetattr(terminal.side) == terminal.before
    finally:
        terminal.close()


def test_missing_program_is_told_at_the_start_of_a_line(on: Sequence[str]) -> None:
    terminal = Terminal(["shell", *on, "--", "nosuch"])
    try:
        assert terminal.ended() == 127
        assert "nosuch: command not found\r\n" in terminal.seen
    finally:
        terminal.close()


def test_closed_window_ends_it_and_its_sandbox(cli: Cli, tmp_path: Path) -> None:
    terminal = Terminal(["shell", "-o", f"run_id={tmp_path.name}"])
    terminal.expect("isolation")
    terminal.type("sleep 1000\r")
    terminal.expect("1000")
    os.close(terminal.side)
    os.close(terminal.fd)
    assert terminal.process.wait(DEADLINE_S) in {1, 130}
    sandboxes = cli.json("ps", "--json", "--backend", "local")
    assert [sandbox for sandbox in sandboxes if sandbox["labels"]["run_id"] == tmp_path.name] == []


def test_without_a_terminal_it_says_what_to_use(cli: Cli) -> None:
    done = cli.run("shell")
    assert done.returncode == 2
    assert "hermes-exec run" in done.stderr
