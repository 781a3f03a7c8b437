"""Each row of the background processes that earlier systems got wrong."""

from __future__ import annotations

import re

from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from tests.e2e.tools.conftest import Caller


async def start(call: Caller, command: str, **more: object) -> str:
    data = await call("terminal", command=command, background=True, **more)
    assert re.fullmatch(r"proc_[0-9a-f]{12}", str(data["session_id"]))
    return str(data["session_id"])


async def test_p1_a_background_process_starts_in_its_workdir(call: Caller, slot: Slot) -> None:
    await slot.files.mkdir("a dir")
    one = await start(call, "pwd", workdir="a dir")
    assert (await call("process", action="wait", session_id=one))["output"] == f"{slot.workspace}/a dir\n"
    await call.sh("mkdir -p deep; cd deep")
    two = await start(call, "pwd")
    assert (await call("process", action="wait", session_id=two))["output"] == f"{slot.workspace}/deep\n"


async def test_p2_kill_ends_the_children_too(call: Caller, slot: Slot) -> None:
    one = await start(call, "sh -c 'sleep 1618 & setsid sleep 1618 & echo up; sleep 1618'; sleep 1618")
    while "up" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    killed = await call("process", action="kill", session_id=one)
    assert killed["status"] == "killed"
    assert killed["killed_processes"] >= 3
    assert [process for process in await slot.processes() if "1618" in process.argv] == []
    polled = await call("process", action="poll", session_id=one)
    assert (polled["status"], polled["completion_reason"], polled["termination_source"]) == (
        "exited",
        "killed",
        "process.kill",
    )


async def test_p3_stdin_works_without_a_terminal(call: Caller) -> None:
    one = await start(call, 'while read -r line; do echo "got $line"; done; echo end')
    assert (await call("process", action="write", session_id=one, data="raw"))["bytes_written"] == 3
    await call("process", action="submit", session_id=one, data=" text")
    await call("process", action="submit", session_id=one, data="second")
    await call("process", action="close", session_id=one)
    ended = await call("process", action="wait", session_id=one, timeout=20)
    assert ended["output"] == "got raw text\ngot second\nend\n"
    assert ended["exit_code"] == 0


async def test_p4_polling_starts_nothing_and_moves_little(call: Caller, slot: Slot) -> None:
    one = await start(call, "head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo done; exec sleep 60")
    while "done" not in (polled := await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    assert len(polled["output_preview"]) == 1_000
    before = {process.pid for process in await slot.processes()}
    for _ in range(10):
        await call("process", action="poll", session_id=one)
    assert {process.pid for process in await slot.processes()} == before


async def test_p5_an_ended_process_stays_known(call: Caller) -> None:
    one = await start(call, "echo result; exit 4")
    await call("process", action="wait", session_id=one)
    await call("process", action="poll", session_id=one)
    polled = await call("process", action="poll", session_id=one)
    assert (polled["status"], polled["exit_code"], polled["output_preview"]) == ("exited", 4, "result\n")
    logged = await call("process", action="log", session_id=one)
    assert (logged["output"], logged["total_lines"]) == ("result", 1)


async def test_p6_only_the_own_slots_processes_are_known(call: Caller, slot: Slot, pool: SandboxPool) -> None:
    one = await start(call, "sleep 60")
    async with pool.slot() as second:
        stranger = Caller(Toolbox(second))
        for action in ("poll", "log", "wait", "kill", "write", "submit", "close"):
            result = await stranger.fails("process", action=action, session_id=one, data="x")
            assert result.error_kind == "no_process"
            assert result.data["status"] == "not_found"
        assert (await stranger("process", action="list"))["processes"] == []
    friend = Caller(Toolbox(slot))
    assert [entry["session_id"] for entry in (await friend("process", action="list"))["processes"]] == [one]
    assert (await friend("process", action="kill", session_id=one))["status"] == "killed"


async def test_p7_background_and_foreground_have_the_same_shell(call: Caller) -> None:
    await call.sh("alias hi='echo hello'; greet() { echo good day; }; export SHOWN=1; hidden=2")
    one = await start(call, "hi; greet; echo $SHOWN $hidden; export LEAK=1; cd /")
    assert (await call("process", action="wait", session_id=one))["output"] == "hello\ngood day\n1 2\n"
    assert await call.sh("hi; greet; echo $SHOWN $hidden [$LEAK]") == "hello\ngood day\n1 2 []\n"
