"""Nothing that a slot's names, arguments and output are made of reaches the user's terminal as an escape sequence."""

from __future__ import annotations

import subprocess

import pytest

from hermes_exec import SandboxPool
from tests.e2e.cli.conftest import PROGRAM, environment
from tests.e2e.cli.hostile import HOSTILE, OBEYED, shown


def test_arguments_of_processes_in_a_slot_of_another_process() -> None:
    with SandboxPool("local") as pool, pool.slot() as slot:
        slot.spawn(["sh", "-c", "sleep 1000; :", HOSTILE, "one\ntwo"])
        text, code = shown("shell", "--slot", slot.id, "ps")
        assert not OBEYED.search(text)
        assert "title" in text
        assert code == 0
        assert not OBEYED.search(shown("ps", "--backend", "local")[0])


def test_slots_beside_each_other_cannot_pass_for_one_another() -> None:
    script = r"printf 'a\033[1A\033[2Kb\r0: forged\n'"
    text, code = shown("run", "--slots", "2", "--", script)
    assert code == 0
    assert "\x1b[1A" not in text
    assert sorted(text.splitlines()) == ["0: 0: forged", "0: a␛[1A␛[2Kb", "1: 0: forged", "1: a␛[1A␛[2Kb"]


@pytest.mark.parametrize("options", [(), ("--slots", "2")])
def test_bytes_are_as_they_are_where_a_program_reads_them(options: tuple[str, ...]) -> None:
    command = [*PROGRAM, "run", *options, "--", r"printf 'a\033[31mb\n'"]
    done = subprocess.run(command, capture_output=True, timeout=120, env=environment(), check=True)
    heads = [b"0: ", b"1: "] if options else [b""]
    assert done.stdout == b"".join(head + b"a\x1b[31mb\n" for head in heads)


def test_one_slot_has_the_terminal_as_ssh_and_docker_give_it() -> None:
    assert "a\x1b[31mb" in shown("run", "--", r"printf 'a\033[31mb\n'")[0]


def test_json_and_an_error_on_a_terminal() -> None:
    text, code = shown("run", "--json", "--", r"printf '\033[2J\302\2332J\342\200\256'; exit 3")
    assert (code, OBEYED.search(text)) == (3, None)
    assert "\\u001b[2J\\u009b2J\\u202e" in text
    text, code = shown("run", "--cwd", f"nowhere{HOSTILE}", "--", "true")
    assert (code != 0, OBEYED.search(text)) == (True, None)
