"""Small parts of the command line that need no sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.cli.commands.run import parse_variables
from hermes_exec.cli.commands.shell import term_of
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.modes import TerminalModes
from hermes_exec.cli.kit.output import age, emit_json
from hermes_exec.cli.kit.pools import parse_options
from hermes_exec.cli.kit.pulling import PullDisplay, describe
from hermes_exec.errors import (
    BackendUnavailable,
    CommandFailed,
    ConfigError,
    ErrorCause,
    ExecError,
    ImageError,
    PostMortem,
    SandboxDied,
)
from hermes_exec.results import KillReceipt, PullProgress, RunResult
from tests.support.interrupts import BURSTS, Burst


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ImageError("x"), 2),
        (BackendUnavailable("x"), 3),
        (SandboxDied("x"), 3),
        (SandboxDied("x", post_mortem=PostMortem("ended", suspect="tenant")), 1),
        (CommandFailed(RunResult(exit_code=4)), 1),
        (ExecError("x", cause=ErrorCause.PROVIDER), 3),
    ],
)
def test_exit_code_of_an_error(error: ExecError, code: int) -> None:
    assert exits.code_of(error) == code


def test_errors_are_found_in_groups() -> None:
    inner, other = ConfigError("a"), SandboxDied("b")
    group = ExceptionGroup("g", [inner, ExceptionGroup("h", [ValueError("c"), other])])
    assert list(exits.errors_in(group)) == [inner, other]
    assert list(exits.errors_in(ValueError("c"))) == []


def test_options_are_yaml() -> None:
    texts = ["slots-per-sandbox=8", "network=false", "limits={cpus: 2}", "image=a:b=c", "user="]
    parsed = parse_options(texts)
    assert parsed == {
        "slots_per_sandbox": 8,
        "network": False,
        "limits": {"cpus": 2},
        "image": "a:b=c",
        "user": None,
    }


@pytest.mark.parametrize("text", ["network", "=1", "a=[1", "a={"])
def test_bad_options_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option"):
        parse_options([text])


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(max_size=20)))
def test_variables_keep_everything_after_the_first_equals_sign(wanted: dict[str, str]) -> None:
    assert parse_variables([f"{name}={value}" for name, value in wanted.items()]) == wanted


def test_json_has_a_form_for_results(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"receipt": KillReceipt(found=2, handles=("cgroup",)), "cause": ErrorCause.TASK, "raw": b"\xff"})
    printed = json.loads(capsys.readouterr().out)
    assert printed["receipt"]["handles"] == ["cgroup"]
    assert (printed["cause"], printed["raw"]) == ("task", {"b64": "/w=="})


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (119, "119s"), (240, "4m"), (7300, "2h"), (200_000, "2d")])
def test_age_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_pull_is_shown_in_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = PullDisplay()
    display(PullProgress("debian:12", "downloading", 5_000_000, 20_000_000))
    display(PullProgress("debian:12", "downloading", 6_000_000, 20_000_000))
    assert capsys.readouterr().err == "image debian:12: 25 % (5.0 of 20.0 MB) downloading\n"
    assert describe(PullProgress("debian:12", "waiting")) == "image debian:12: waiting"


GUARDED = """
import signal, sys, anyio
from hermes_exec.cli.kit.interrupt import run_async
signal.signal(signal.SIGHUP, signal.SIG_DFL)
async def main():
    try:
        print("ready", flush=True)
        await anyio.sleep(1000)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
            print("cleaned", flush=True)
    return 0
sys.exit(run_async(main))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_cleaning_up_finish(number: signal.Signals) -> None:
    command = [sys.executable, "-c", GUARDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, error = process.communicate(timeout=30)
    assert (out, process.returncode) == ("cleaned\n", 130)
    assert "Traceback" not in error


@pytest.mark.parametrize("open_channel", [os.pipe, os.openpty])
def test_signal_ends_a_run_whose_stderr_nobody_reads(open_channel: Callable[[], tuple[int, int]]) -> None:
    """A closed terminal sends SIGHUP, and Ctrl-C ends the `tee` at the end of a pipe too."""
    reader, writer = open_channel()
    command = [sys.executable, "-c", GUARDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.close(reader)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("cleaned\n", 130)


@pytest.mark.parametrize("burst", BURSTS, ids=str)
def test_further_signals_break_nothing_off(burst: Burst) -> None:
    command = [sys.executable, "-c", GUARDED]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        burst.send(process)
        out, error = process.communicate(timeout=30)
    assert (out, process.returncode) == ("cleaned\n", 130)
    assert error in burst.messages


SIGNALLED = """
import atexit, os, signal, sys, threading, time
import anyio, anyio.to_thread
from hermes_exec.cli.kit import interrupt
from hermes_exec.cli.kit.ending import end_with
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt.SECOND_SIGNAL_TIMEOUT_S = 0.3
atexit.register(print, "last resort", flush=True)
def send(times=2):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
async def stuck():
    send()
    with anyio.CancelScope(shield=True):
        await anyio.sleep(1000)
async def blocked():
    send(), time.sleep(1000)
async def thread_stays():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    send()
    await anyio.sleep(1000)
async def at_the_end():
    try:
        send(1)
        await anyio.sleep(1000)
    finally:
        send(1)
async def fails():
    try:
        send(1)
        await anyio.sleep(1000)
    finally:
        raise RuntimeError("while it was ended")
async def not_begun():
    print("begun", flush=True)
def later():
    send(1)
    time.sleep(0.02)
    send(1)
name = sys.argv[1]
if name == "not_begun":
    run = anyio.run
    anyio.run = lambda *given: (send(), run(*given))[1]
if name == "before":
    end_with(lambda: (threading.Thread(target=later).start(), time.sleep(1000)))
end_with(lambda: sys.exit(interrupt.run_async(globals()[name], notice=None)))
"""


UNFLUSHED = """
import sys
from hermes_exec.cli.kit.ending import end_with
def main():
    global file
    file = open(sys.argv[1], "w")
    file.write("kept")
    sys.exit(130)
end_with(main)
"""


def test_end_after_a_signal_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert subprocess.run([sys.executable, "-c", UNFLUSHED, str(path)], timeout=60, check=False).returncode == 130
    assert path.read_text() == "kept"


@pytest.mark.parametrize("where", ["stuck", "blocked", "thread_stays", "at_the_end", "fails", "not_begun", "before"])
def test_second_signal_bounds_what_the_end_takes(where: str) -> None:
    """Work that heeds no cancellation ends too, by the last resort at exit, and nothing else begins."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, where], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("last resort\n", "", 130)


UNDER_NOHUP = """
import os, signal, sys, anyio
from hermes_exec.cli.kit.interrupt import run_async
signal.signal(signal.SIGHUP, signal.SIG_IGN)
async def main():
    os.kill(os.getpid(), signal.SIGHUP)
    await anyio.sleep(0.3)
    return 7
sys.exit(run_async(main))
"""


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    assert subprocess.run([sys.executable, "-c", UNDER_NOHUP], timeout=30).returncode == 7


@pytest.mark.parametrize(
    ("output", "undone"),
    [
        (b"plain \x1b[31mred", b""),
        (b"\x1b[?1049h", b"\x1b[?1049l\x1b[0m\x1b>"),
        (b"\x1b[?1049h\x1b[?1049l", b""),
        (b"\x1b[?25l\x1b[?1000;1006h", b"\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[0m\x1b>"),
        (b"\x1b[?25h\x1b[?7h\x1b[?2004l", b""),
        (b"\x1b[?" + b"9" * 5000 + b"h\x1b[?;h\x1b[?12345h", b""),
    ],
)
def test_modes_that_a_program_left_are_undone(output: bytes, undone: bytes) -> None:
    for size in (1, 2, 5, len(output)):
        modes = TerminalModes()
        for start in range(0, len(output), size):
            modes.feed(output[start : start + size])
        assert modes.undo() == undone


@pytest.mark.parametrize(
    ("here", "there"),
    [
        *((name, name) for name in ("xterm", "xterm-256color", "tmux-256color", "linux", "vt100", "dumb")),
        *((name, "xterm-256color") for name in ("xterm-kitty", "alacritty", "", "xterm-ghostty")),
    ],
)
def test_terminal_has_a_name_that_images_know(here: str, there: str) -> None:
    assert term_of(here) == there
