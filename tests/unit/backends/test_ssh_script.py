"""Scripts for the shell of a host: their end is seen, whatever the shell's start-up files print and leave behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from anyio import to_thread

from hermes_exec.backends.process import open_child
from hermes_exec.backends.ssh.script import CompletedCommand, HostScript, StreamAfter
from hermes_exec.errors import LaunchError

NOISE = "echo noise; echo more >&2; sleep 60 & echo $! >&2; "


def run(script: HostScript, before: str = "", stdin: bytes = b"") -> CompletedCommand | bytes:
    """Run a script as a login shell does, after a command of its start-up files."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(["/bin/sh", "-c", before + script.command], stdin=pipe, stdout=pipe, stderr=pipe)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        child.stdin.write(stdin)
        child.stdin.close()
        result = script.read(child.stdout.fileno(), 30)
    finally:
        child.wait()
        if before == NOISE:
            os.kill(int(os.read(child.stderr.fileno(), 4096).split()[-1]), 9)
        child.stdout.close()
        child.stderr.close()
    return result if isinstance(result, bytes) else result[0]


@pytest.mark.parametrize("before", ["", NOISE])
def test_script_result_has_code_output_and_errors(before: str) -> None:
    script = HostScript("cat; printf '%s.' \"$@\"; echo wrong >&2; exec sh -c 'exit 7'", "a b", "it's", "")
    assert run(script, before, b"given ") == CompletedCommand(7, b"given a b.it's..", b"wrong")


def test_script_does_not_wait_for_programs_that_hold_the_output() -> None:
    began = time.monotonic()
    assert run(HostScript("echo done"), NOISE) == CompletedCommand(0, b"done\n", b"")
    assert time.monotonic() - began < 30


def test_shell_that_runs_no_script_is_reported_with_its_output() -> None:
    assert run(HostScript("echo never"), "echo This account is not available; exit 1; ") == (
        b"This account is not available\n"
    )


def test_output_of_a_script_cannot_end_it() -> None:
    script = HostScript("cat")
    other = HostScript("true")
    forged = run(other)
    assert isinstance(forged, CompletedCommand)
    text = other.command.encode() + b"\nhermes-exec-0123 ends 0\n\nhermes-exec-0123\n"
    assert run(script, stdin=text) == CompletedCommand(0, text, b"")


@pytest.mark.anyio
@pytest.mark.parametrize("waits", [True, False])
async def test_program_after_a_script_gets_the_stream(waits: bool, tmp_path: Path) -> None:
    script = HostScript("echo started", then="cat")
    child, plain = open_child(["/bin/sh", "-c", script.command], tmp_path / "log", {})
    stream = StreamAfter(plain, script)
    async with stream:
        if waits:
            assert stream.wait_script(30) == CompletedCommand(0, b"started\n", b"")
        await stream.send(b"to the program")
        assert await stream.receive() == b"to the program"
    await to_thread.run_sync(child.wait)


def test_program_does_not_start_after_a_script_that_fails() -> None:
    assert run(HostScript("exit 3", then="echo never")) == CompletedCommand(3, b"", b"")


def test_noise_before_a_script_is_dropped_and_its_end_is_kept() -> None:
    script = HostScript("cat")
    output = script.output()
    for _ in range(200):
        assert output.feed(b"noise " * 1000) is None
    assert len(output.kept) == 64 << 10
    done = run(script, "head -c 3000000 /dev/zero; ", b"given")
    assert done == CompletedCommand(0, b"given", b"")
    silent = run(HostScript("echo never"), "head -c 3000000 /dev/zero; echo not available; exit 1; ")
    assert isinstance(silent, bytes)
    assert len(silent) == 64 << 10
    assert silent.endswith(b"not available\n")


def test_script_that_prints_without_end_is_refused() -> None:
    script = HostScript("cat")
    output = script.output()
    assert output.feed(f"{script._begin}first\n".encode()) is None
    with pytest.raises(LaunchError, match="more than 16 MiB"):
        for _ in range(17):
            output.feed(bytes(1 << 20))


def test_marks_are_found_in_any_pieces() -> None:
    script = HostScript("echo out; echo wrong >&2; exit 3", then="echo after")
    child = subprocess.run(["/bin/sh", "-c", f"echo noise; {script.command}"], capture_output=True, check=False)
    for size in (1, 2, 7, 50, 1000):
        output, data = script.output(), child.stdout
        results = [output.feed(data[at : at + size]) for at in range(0, len(data), size)]
        (done,) = [result for result in results if result is not None]
        assert done[0] == CompletedCommand(3, b"out\n", b"wrong")


def test_long_output_of_a_script_is_searched_once() -> None:
    script = HostScript("")
    output, piece = script.output(), bytes(1000)
    assert output.feed(script._begin.encode()) is None
    began = time.process_time()
    for _ in range(16_000):
        assert output.feed(piece) is None
    assert time.process_time() - began < 5, "a search from the start each time takes 50 s"
