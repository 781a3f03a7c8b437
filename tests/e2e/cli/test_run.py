"""`hermes-exec run` on real backends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import require_engine
from tests.e2e.cli.conftest import PROGRAM, Cli, environment
from tests.support.interrupts import BURSTS, Burst


def test_streams_and_exit_code_are_the_commands(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_several_words_are_a_program_and_its_arguments(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--", "printf", "%s|", "a b", "$HOME", ";")
    assert (done.stdout, done.returncode) == ("a b|$HOME|;|", 0)


def test_standard_input_is_passed_on(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--", "wc -c", text="x" * 300_000)
    assert done.stdout.split() == ["300000"]


def test_json_has_the_whole_result(cli: Cli, on: Sequence[str]) -> None:
    facts = cli.json("run", *on, "--json", "--env", "NAME=value", "--", "echo $NAME; exit 2", code=2)
    assert (facts["stdout"], facts["exit_code"], facts["timed_out"]) == ("value\n", 2, False)
    assert facts["isolation"] in {"landlock", "uid", "namespaces", "exclusive"}


def test_timeout_ends_the_command_and_keeps_its_output(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--json", "--timeout", "3", "--", "echo early; sleep 100")
    assert done.returncode in {143, 137}, done.stderr  # a machine that is slow to end it meets SIGKILL
    facts = json.loads(done.stdout)
    assert facts["timed_out"]
    assert facts["stdout"] == "early\n"
    assert facts["killed"]["left"] == 0


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_timeout_is_told_and_never_a_success(cli: Cli, slots: str) -> None:
    done = cli.run("run", "--timeout", "0.5", "--slots", slots, "--", "trap 'exit 0' TERM; sleep 100 & wait")
    assert done.returncode in {143, 137}  # a shell that is slow to answer SIGTERM meets SIGKILL
    assert done.stderr.count("timed out after") == int(slots)


def test_missing_program_is_127_with_the_reason(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--", "no-such-program-here", "x")
    assert done.returncode == 127
    assert done.stderr.count("no-such-program-here") == 1


def test_a_directory_that_is_not_there_is_one_line(cli: Cli, on: Sequence[str]) -> None:
    done = cli.run("run", *on, "--cwd", "/nope", "--", "pwd")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError: ")
    assert "Traceback" not in done.stderr


def test_several_slots_at_once(cli: Cli) -> None:
    results = cli.json("run", "--json", "--slots", "3", "--", "pwd")
    assert len({result["slot"] for result in results}) == 3
    assert all(result["exit_code"] == 0 and result["stdout"].startswith("/") for result in results)


def test_reason_is_told_for_each_of_several_slots(cli: Cli) -> None:
    done = cli.run("run", "--slots", "2", "--", "no-such-program-here", "x")
    assert done.returncode == 127
    assert [line[:3] for line in done.stderr.splitlines() if "no-such-program-here" in line] == ["0: ", "1: "]


@pytest.mark.whole
def test_more_slots_than_there_can_be_names_what_makes_room(cli: Cli) -> None:
    few = ("-o", "slots_per_sandbox=2", "-o", "max_sandboxes=1")
    refused = cli.run("run", "--slots", "3", *few, "--", "true")
    assert refused.returncode == 2
    cure = " ".join(refused.stderr.split()).partition("(on the command line: ")[2].removesuffix(")")
    assert cure == "-o max_sandboxes=2"
    assert cli.run("run", "--slots", "3", *few, *cure.split(), "--", "true").returncode == 0
    assert cli.run("run", "--slots", "3", "-o", "slots_per_sandbox=2", "--", "true").returncode == 0


@pytest.mark.parametrize("mask", [0o077, 0o777])
def test_the_umask_of_who_starts_it_is_not_the_slots(cli: Cli, on: Sequence[str], mask: int) -> None:
    old = os.umask(mask)
    try:
        done = cli.run("run", *on, "--", "umask; touch ~/x ./y $TMPDIR/z && ls ~")
    finally:
        os.umask(old)
    assert (done.stdout, done.stderr) == ("0022\nx\n", "")


def test_variables_are_options(cli: Cli) -> None:
    """As for `SandboxPool.from_env`; options count more."""
    named = {"HERMES_EXEC_SLOT_LIMITS": "{open_files: 77}", "HERMES_EXEC_WORKDIR": "/usr"}
    show = ("--", "ulimit -n; pwd")
    assert cli.run("run", *show, env=named).stdout == "77\n/usr\n"
    assert cli.run("run", "-o", "workdir=/etc", *show, env=named).stdout == "77\n/etc\n"
    wrong = cli.run("run", *show, env={"HERMES_EXEC_BAKEND": "docker"})
    assert wrong.returncode == 0
    assert "warning: HERMES_EXEC_BAKEND: not read" in " ".join(wrong.stderr.split())
    assert "did you mean 'backend'?" in " ".join(wrong.stderr.split())


@pytest.mark.docker
def test_slots_that_are_kept_apart_less_than_usual_are_told(cli: Cli, docker_image: Callable[[str], str]) -> None:
    less = ("-o", "slots_per_sandbox=2", "-o", "cap_drop=[ALL]")
    done = cli.run("run", "-b", "docker", "-i", docker_image("busybox"), *less, "--", "true")
    assert done.returncode == 0
    assert "warning: slots share the root of their sandbox, isolated at the level 'landlock'" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_with_130_and_every_sandbox_gone(cli: Cli, on: Sequence[str], number: signal.Signals) -> None:
    with cli.start("run", *on, "--option", f"run_id=signal-{number}", "--", "echo ready; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=90) == 130
    sandboxes = cli.json("ps", "--json")
    assert [sandbox for sandbox in sandboxes if sandbox["labels"]["run_id"] == f"signal-{number}"] == []


@pytest.mark.parametrize(
    "burst", [pytest.param(burst, marks=pytest.mark.whole if n % 3 else ()) for n, burst in enumerate(BURSTS)], ids=str
)
def test_several_signals_end_as_one_does(cli: Cli, on: Sequence[str], burst: Burst) -> None:
    run_id = f"signals-{burst}"
    begins = ("run", *on, "--option", f"run_id={run_id}", "--", "echo ready; sleep 1000")
    with cli.start(*begins, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        burst.send(process)
        _, error = process.communicate(timeout=90)
    assert process.returncode == 130, error
    assert error in burst.messages
    assert [sandbox for sandbox in cli.json("ps", "--json") if sandbox["labels"]["run_id"] == run_id] == []


def test_orphan_of_a_killed_driver_is_listed_and_reaped(cli: Cli, on: Sequence[str]) -> None:
    run_id = f"orphan-{on[1]}"
    with cli.start("run", *on, "-o", f"run_id={run_id}", "--", "echo ready; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            (sandbox,) = [sandbox for sandbox in cli.json("ps", "--json") if sandbox["labels"]["run_id"] == run_id]
            assert (sandbox["owner"], sandbox["labels"]["pid"]) == ("alive", process.pid)
        finally:
            process.kill()
    # Every pool that starts on this host reaps orphans too, so another test's may have been quicker.
    left = [sandbox for sandbox in cli.json("ps", "--json") if sandbox["labels"]["run_id"] == run_id]
    assert [sandbox["owner"] for sandbox in left] in ([], ["gone"])
    ended = cli.json("reap", "--json", "--orphans")
    assert all(each["reason"] for each in ended)
    assert run_id not in {sandbox["labels"]["run_id"] for sandbox in cli.json("ps", "--json")}


def test_unknown_backend_names_the_nearest(cli: Cli) -> None:
    done = cli.run("run", "--backend", "dokcer", "--", "true")
    assert done.returncode == 2
    assert "docker" in done.stderr


def test_unknown_option_names_the_nearest(cli: Cli) -> None:
    error = cli.json("run", "--json", "-o", "slots_per_sandbx=2", "--", "true", code=2)["error"]
    assert error["kind"] == "ConfigError"
    assert "slots_per_sandbox" in error["message"]


@pytest.mark.parametrize("option", ["network", "limits={memory_mb: 1", "setup=false", "on_event=print"])
def test_option_that_cannot_be_is_refused_in_one_line(cli: Cli, option: str) -> None:
    done = cli.run("run", "-o", option, "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["hermes-exec", "run", "--", "true"]
from hermes_exec.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "module", ["typer", "hermes_exec.cli.kit.exits", "hermes_exec.cli.commands.run", "hermes_exec.pool"]
)
def test_an_interrupt_while_the_program_is_loaded_ends_it_quietly(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert (done.stdout, done.stderr.removeprefix("SIGINT: ending all sandboxes\n"), done.returncode) == ("", "", 130)


def test_missing_command_is_wrong_usage(cli: Cli) -> None:
    assert cli.run("run").returncode == 2


@pytest.mark.docker
def test_missing_image_is_told_at_once(cli: Cli) -> None:
    require_engine("docker")
    arguments = ("run", "-b", "docker", "-i", "no-such-image:at-all", "-o", "pull_policy=never", "--json", "--", "true")
    error = cli.json(*arguments, code=2)["error"]
    assert error["kind"] == "ImageError"
    assert "no-such-image:at-all" in error["message"]


def test_an_image_name_that_is_no_utf8_is_one_line(cli: Cli) -> None:
    done = cli.run("run", "--backend", "docker", "--image", os.fsdecode(b"a\xff"), "--", "true")
    assert (done.stderr, done.returncode) == ("ConfigError: image: 'a\\udcff' is not valid Unicode\n", 2)


def test_unreachable_daemon_is_infrastructure(cli: Cli) -> None:
    arguments = ("run", "-b", "docker", "-i", "x", "-o", "base_url=unix:///nonexistent.sock", "--json", "--", "true")
    assert cli.json(*arguments, code=3)["error"]["kind"] == "BackendUnavailable"


def test_closed_standard_output_is_no_traceback(cli: Cli) -> None:
    with cli.start("run", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
        process.stdout.close()
        assert process.stderr is not None
        error = process.stderr.read()
        process.wait(timeout=60)
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments", [["run", "--", "echo hi"], ["run", "--json", "--", "true"], ["tools", "list"], ["config", "schema"]]
)
def test_standard_output_that_takes_no_more_is_one_line(cli: Cli, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full, cli.start(*arguments, stdout=full.fileno()) as process:
        _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (3, "OSError: [Errno 28] No space left on device: '<stdout>'\n")


@pytest.mark.parametrize(
    ("closed", "code", "out"),
    [(">&-", 3, ""), ("2>&-", 3, "hi\n"), ("<&-", 3, "hi\n"), ("<&- >&- 2>&-", 3, "")],
)
def test_standard_streams_that_the_caller_closed_are_done_without(closed: str, code: int, out: str) -> None:
    command = ["sh", "-c", f'"$@" {closed}', "sh", *PROGRAM, "run", "--", f"echo hi; exit {code}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")


def test_a_terminal_without_columns_shows_errors() -> None:
    command = [*PROGRAM, "run", "-b", "nosuch", "--", "true"]
    env = environment() | {"COLUMNS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 2
    assert "there is no backend 'nosuch'" in done.stderr


@pytest.mark.parametrize("settings", ["[]", "null", '{"auths": 5}', '{"proxies": 5}', None])
def test_settings_of_docker_that_cannot_be_used_are_one_line(settings: str | None, tmp_path: Path) -> None:
    require_engine("docker")
    env = environment() | {"DOCKER_CONFIG": str(tmp_path)}
    if settings is None:
        env["DOCKER_HOST"] = "tcp://127.0.0.1:99999"
    else:
        (tmp_path / "config.json").write_text(settings)
    command = [*PROGRAM, "run", "-b", "docker", "-i", "nobody/nothing", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("BackendUnavailable: the settings of Docker's clients cannot be used")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", [["--json"], ["--slots", "2"], ["--slots", "2", "--json"]])
def test_a_stream_that_cannot_write_every_character(way: list[str]) -> None:
    command = [*PROGRAM, "run", *way, "--", "echo gr\u00fc\u00df \u2713"]
    done = subprocess.run(command, env=environment() | {"PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    if "--json" in way:
        assert "gr\u00fc\u00df \u2713" in str(json.loads(done.stdout.decode("ascii")))
    else:
        assert done.stdout.decode() == "0: gr\u00fc\u00df \u2713\n1: gr\u00fc\u00df \u2713\n"


@pytest.mark.parametrize("command", [["doctor", "-b", "local"], ["ps"], ["tools", "list"]])
def test_a_reader_that_has_gone_is_no_traceback(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*PROGRAM, *command], env=environment(), stdout=writing, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(writing)
    assert b"Traceback" not in done.stderr
