"""The terminal and process tools: shapes of their results, limits, terminals."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

import pytest

from hermes_exec import ConfigError, Limits, SandboxPool
from hermes_exec.slot.process import Process
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Notice, Toolbox, ToolOptions
from hermes_exec.tools.terminal import background, notices
from tests.e2e.tools.conftest import Caller


@pytest.mark.loops
async def test_a_foreground_result_has_the_known_shape(toolbox: Toolbox) -> None:
    result = await toolbox.call("terminal", {"command": "echo out; echo err >&2; echo end"})
    assert result.data == {"output": "out\nerr\nend\n", "exit_code": 0, "error": None}
    assert result.ok
    assert 0 < result.duration_s < 30
    failed = await toolbox.call("terminal", {"command": "exit 9"})
    assert failed.data == {"output": "", "exit_code": 9, "error": None}
    assert (failed.ok, failed.error_kind) == (False, "exit_code")


async def test_a_harmless_exit_code_is_explained(call: Caller) -> None:
    result = await call.fails("terminal", command="echo abc | grep xyz")
    assert result.data["exit_code_meaning"] == "No matches found (not an error)"


async def test_long_output_keeps_head_and_tail(call: Caller, slot: Slot) -> None:
    text = str((await call("terminal", command="seq 1 100000"))["output"])
    head, notice, tail = (
        text.split("\n\n... [", maxsplit=1)[0],
        text.split("... [")[1].split("] ...", maxsplit=1)[0],
        text.split("] ...\n\n")[1],
    )
    assert (len(head), len(tail)) == (20_000, 30_000)
    assert head.startswith("1\n2\n")
    assert tail.endswith("\n99999\n100000\n")
    path = notice.split("the full output is in ")[1].split(",")[0]
    whole = await slot.files.read_text(path)
    assert whole == "".join(f"{n}\n" for n in range(1, 100_001))


async def test_output_just_within_the_limit_is_whole(call: Caller) -> None:
    text = str((await call("terminal", command="printf '%050000d' 0"))["output"])
    assert text == "0" * 50_000
    assert len(str((await call("terminal", command="printf 'é%.0s' $(seq 1 40000)"))["output"])) == 40_000


async def test_the_middle_length_is_kept_in_a_file_too(call: Caller, slot: Slot) -> None:
    text = str((await call("terminal", command="seq 1 12000"))["output"])
    assert "OUTPUT TRUNCATED" in text
    path = text.split("the full output is in ")[1].split(",", maxsplit=1)[0]
    assert (await slot.files.read_text(path)).endswith("\n12000\n")


async def test_control_sequences_are_taken_out(call: Caller) -> None:
    assert await call.sh("printf '\\033[31mred\\033[0m \\033]0;t\\007plain\\n'") == "red plain\n"


async def test_a_timeout_keeps_what_was_printed(call: Caller) -> None:
    await call.sh("true")  # starts the session
    started = time.monotonic()
    result = await call.fails("terminal", command="echo before; sleep 60", timeout=3)
    assert result.data["exit_code"] == 124
    assert result.data["output"] == "before\n[Command timed out after 3s]"
    assert time.monotonic() - started < 40
    assert await call.sh("echo still here") == "still here\n"


async def test_a_workdir_is_for_one_command(call: Caller, slot: Slot) -> None:
    await call.sh("mkdir -p a b; cd a; export KEPT=1")
    assert await call.sh("pwd; export SET=2", workdir=f"{slot.workspace}/b") == f"{slot.workspace}/b\n"
    assert await call.sh("pwd; echo $KEPT $SET") == f"{slot.workspace}/a\n1 2\n"


async def test_file_tools_and_terminal_mean_the_same_file(call: Caller, slot: Slot) -> None:
    await call.sh("mkdir -p sub; cd sub; echo from shell > f")
    assert (await call("read_file", path="f"))["content"] == "1|from shell"
    written = await call("write_file", path="g", content="from tool\n")
    assert written["resolved_path"] == f"{slot.workspace}/sub/g"
    assert await call.sh("cat g") == "from tool\n"
    found = await call("search_files", pattern="from")
    assert [match["path"] for match in found["matches"]] == ["f", "g"]
    await call("write_file", path="~/h", content="home\n")
    assert await call.sh("cat ~/h") == "home\n"


async def test_a_terminal_can_be_had(call: Caller) -> None:
    assert "not a tty" in (await call.fails("terminal", command="tty")).content
    data = await call("terminal", command="tty; test -t 0 && test -t 1 && echo both", pty=True)
    assert data["output"].startswith("/dev/")
    assert data["output"].endswith("both\n")
    result = await call.fails("terminal", command="echo on; sleep 60", pty=True, timeout=1)
    assert result.data["exit_code"] == 124


async def test_long_output_of_a_terminal_has_its_end(call: Caller) -> None:
    output = (await call("terminal", command="echo first; yes | head -c 3000000; echo last", pty=True))["output"]
    assert output.startswith("first\ny\n")
    assert output.endswith("y\nlast\n")
    assert "TRUNCATED" in output


async def test_a_background_terminal_can_be_talked_to(call: Caller) -> None:
    started = await call("terminal", command='read -r line; echo "got $line"; cat; echo end', background=True, pty=True)
    one = started["session_id"]
    await call("process", action="submit", session_id=one, data="first")
    await call("process", action="close", session_id=one)
    ended = await call("process", action="wait", session_id=one, timeout=20)
    assert "got first" in ended["output"]
    assert ended["output"].replace("\r", "").endswith("end\n")


@pytest.mark.parametrize(
    ("program", "size"),
    [
        ("echo now; python3 -c 'print(len(input()))'", 20_000),
        ("python3 -uc 'import sys; print(\"now\"); print(len(sys.stdin.readline()) - 1)'", 20_000),
        ("echo now; IFS= read -r line; echo ${#line}", 4_095),
        ("echo now; IFS= read -r line; echo ${#line}", 20_000),
        ("stty raw -echo; echo now; echo $(($(head -c 20001 | wc -c) - 1))", 20_000),
        ("echo now; exec bash --norc -i", 20_000),
    ],
)
async def test_long_line_reaches_terminal_program(call: Caller, program: str, size: int) -> None:
    one = (await call("terminal", command=program, background=True, pty=True))["session_id"]
    while "now" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    text = "x" * size
    if "bash" in program:
        text = f"v={text}; echo ${{#v}}; exit"
    sent = await call("process", action="submit", session_id=one, data=text)
    assert sent["bytes_written"] == len(text) + 1
    ended = await call("process", action="wait", session_id=one, timeout=20)
    assert str(size) in ended["output"][-30:].replace("\r", "\n").split("\n")


async def test_long_line_without_end_of_file_character_is_refused(call: Caller) -> None:
    one = (await call("terminal", command="stty eof undef; echo go; cat", background=True, pty=True))["session_id"]
    while "go" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    failed = await call.fails("process", action="submit", session_id=one, data="x" * 5_000)
    assert (failed.error_kind, "stty eof undef" in failed.content) == ("os_error", True)


async def test_terminal_programs_have_term(call: Caller, slot: Slot) -> None:
    shown = "sh -c 'echo $TERM'"
    assert (await call("terminal", command=shown, pty=True))["output"] == "xterm-256color\n"
    await call.sh("export TERM=vt100")
    assert (await call("terminal", command=shown, pty=True))["output"] == "vt100\n"
    for env, term in (({}, b"xterm-256color\r\n"), ({"TERM": "dumb"}, b"dumb\r\n")):
        process = await slot.spawn(shown, pty=True, env=env)
        await process.wait(20)
        assert (await process.output())[0] == term


async def test_background_results_have_the_known_shape(call: Caller) -> None:
    started = await call("terminal", command="seq 1 500; exec sleep 60", background=True)
    assert {"output", "session_id", "pid", "exit_code", "error"} <= set(started)
    assert (started["exit_code"], started["error"]) == (0, None)
    one = started["session_id"]
    while "500" not in (polled := await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    assert {"session_id", "command", "status", "pid", "uptime_seconds", "output_preview"} == set(polled)
    assert (polled["status"], polled["command"]) == ("running", "seq 1 500; exec sleep 60")
    logged = await call("process", action="log", session_id=one)
    assert (logged["total_lines"], logged["output"].split("\n")[0]) == (500, "301")
    middle = await call("process", action="log", session_id=one, offset=9, limit=2)
    assert middle["output"] == "10\n11"
    waited = await call("process", action="wait", session_id=one, timeout=1)
    assert (waited["status"], waited["output"][-4:]) == ("timeout", "500\n")
    (entry,) = (await call("process", action="list"))["processes"]
    assert (entry["session_id"], entry["status"]) == (one, "running")
    killed = await call("process", action="kill", session_id=one)
    assert (killed["status"], killed["session_id"]) == ("killed", one)
    assert (await call("process", action="kill", session_id=one))["status"] == "already_exited"
    assert (await call.fails("process", action="submit", session_id=one, data="x")).error_kind == "process_exited"


async def test_a_process_that_prints_without_end_is_looked_at_as_it_stood(call: Caller, toolbox: Toolbox) -> None:
    flood = await call("terminal", command="yes $(seq 1 20)", background=True, watch_patterns=["20"])
    told: list[Notice] = []
    while not told:
        told = await toolbox.notices()
    assert told[0].kind == "matched"
    logged = await call("process", action="log", session_id=flood["session_id"])
    assert logged["status"] == "running"
    assert logged["output"].startswith("1 2 3")
    await call("process", action="kill", session_id=flood["session_id"])


async def test_notices_search_a_bounded_part_at_a_time_and_nothing_is_lost(
    call: Caller, toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SEARCHED_BYTES", 1 << 20)
    command = "echo mark one; yes filler | head -c 4900000; echo mark two; yes filler | head -c 100; echo; echo mark 3"
    one = (await call("terminal", command=command, background=True, watch_patterns=["mark"]))["session_id"]
    while "mark 3" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    while (await call("process", action="poll", session_id=one))["status"] == "running":
        pass
    watch = toolbox._state.watches[one]
    offsets = []
    while one in toolbox._state.watches:
        watch._last_notice_at = None
        offsets.append((watch.offset, [notice.data["lines"] for notice in await toolbox.notices()]))
    assert len(offsets) >= 4
    assert [lines for _, found in offsets for lines in found] == [["mark one"], ["mark two", "mark 3"]]


async def test_a_process_that_is_forgotten_while_it_is_looked_at(
    call: Caller, slot: Slot, toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = (await call("terminal", command="echo x", background=True, notify_on_complete=True))["session_id"]
    while one not in (listed := await background.processes(slot)) or listed[one].ended_at is None:
        pass
    for _ in range(64):
        await (await slot.spawn(["true"])).wait()

    async def as_before(_: Slot) -> dict[str, Process]:
        return listed

    monkeypatch.setattr(background, "processes", as_before)
    assert (await call("process", action="list"))["processes"] == []
    for action in ("poll", "log", "wait"):
        assert (await call.fails("process", action=action, session_id=one)).error_kind == "no_process"
    assert await toolbox.notices() == []
    assert toolbox._state.watches == {}


async def test_long_output_of_a_terminal_says_how_long_it_was(call: Caller) -> None:
    data = await call("terminal", command="stty -onlcr; seq -w 1 400000", pty=True)
    assert "[OUTPUT TRUNCATED - of 2800000 bytes; the kept part of it is in /" in data["output"]
    assert (data["output"][:7], data["output"][-7:]) == ("000001\n", "400000\n")


async def test_long_commands_are_listed_by_their_beginnings(call: Caller, slot: Slot) -> None:
    command = "exec sleep 60 #" + "\x01" * 60_000
    one = (await call("terminal", command=command, background=True))["session_id"]
    (listed,) = await slot.spawned()
    assert listed.command == command[:4096] + " …"
    assert (await call("process", action="poll", session_id=one))["command"] == listed.command


@pytest.mark.parametrize("pty", [False, True])
async def test_input_that_is_not_read_is_told_to_the_byte(slot: Slot, pty: bool) -> None:
    call = Caller(Toolbox(slot, options=ToolOptions(process_write_max_s=1)))
    await call.sh("mkfifo go")
    raw = "stty raw -echo; " if pty else ""
    script = f"{raw}echo ready; read line < go; head -c 600000 | md5sum; exec sleep 60"
    one = (await call("terminal", command=script, background=True, pty=pty))["session_id"]
    while "ready" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    text = "".join(f"{number:05} " for number in range(100_000))
    for _ in range(2):
        result = await call.fails("process", action="write", session_id=one, data=text)
        assert (result.error_kind, result.data["status"]) == ("not_read", "error")
        written = result.data["bytes_written"]
        assert isinstance(written, int)
        assert written < len(text)
        text = text[written:]
    await call.sh("echo > go")
    while text:
        result = await call.toolbox.call("process", {"action": "write", "session_id": one, "data": text})
        text = text[int(str(result.data["bytes_written"])) :]
    expected = hashlib.md5("".join(f"{number:05} " for number in range(100_000)).encode()).hexdigest()
    while expected not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass


async def test_a_wait_is_clamped(slot: Slot) -> None:
    call = Caller(Toolbox(slot, options=ToolOptions(process_wait_max_s=1)))
    started = await call("terminal", command="sleep 60", background=True)
    waited = await call("process", action="wait", session_id=started["session_id"], timeout=500)
    assert "clamped to the limit of 1s" in waited["timeout_note"]


async def test_the_number_of_background_processes_is_bounded(slot: Slot) -> None:
    call = Caller(Toolbox(slot, options=ToolOptions(max_running_processes=2)))
    for _ in range(2):
        await call("terminal", command="sleep 60", background=True)
    result = await call.fails("terminal", command="sleep 60", background=True)
    assert result.error_kind == "too_many_processes"


async def test_a_command_that_is_too_long_is_told_what_to_do(toolbox: Toolbox) -> None:
    for more in ({}, {"background": True}, {"pty": True}):
        result = await toolbox.call("terminal", {"command": "true; #" + "x" * (32 << 20), **more})
        assert (result.ok, result.error_kind) == (False, "bad_value")
        assert "write_file" in result.content
    assert (await toolbox.call("terminal", {"command": "echo on"})).data["output"] == "on\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a limit of processes on local needs cgroups or uids")
async def test_a_background_command_that_finds_no_room_has_not_started() -> None:
    async with (
        SandboxPool("local", slot_limits={"pids": 12}) as pool,
        pool.slot() as slot,
        Toolbox(slot) as toolbox,
    ):
        while (await slot.spawn(["sleep", "1000"])).pid:
            pass
        for more in ({}, {"pty": True}, {"notify_on_complete": True}):
            result = await toolbox.call("terminal", {"command": "sleep 1", "background": True, **more})
            assert (result.ok, result.error_kind, result.data["exit_code"]) == (False, "exit_code", 126)
            assert str(result.data["output"]).startswith("cannot fork")
            assert "session_id" not in result.data


@pytest.mark.docker
@pytest.mark.parametrize("background", [False, True])
async def test_an_image_without_a_shell_is_no_mistake_of_the_model(
    docker_image: Callable[[str], str], background: bool
) -> None:
    async with SandboxPool("docker", image=docker_image("distroless")) as pool, pool.slot() as slot:
        toolbox = Toolbox(slot)
        with pytest.raises(ConfigError, match="no shell"):
            await toolbox.call("terminal", {"command": "ls", "background": background})
        assert (await toolbox.call("write_file", {"path": "x", "content": "on"})).ok


async def test_limits_without_a_session_are_no_mistake_of_the_model() -> None:
    async with SandboxPool("local", slot_limits=Limits(open_files=12)) as pool, pool.slot() as slot:
        with pytest.raises(ConfigError, match="16 open files"):
            await Toolbox(slot).call("terminal", {"command": "ls"})


async def test_a_command_does_not_run_elsewhere_when_its_directory_is_gone(toolbox: Toolbox) -> None:
    await toolbox.call("write_file", {"path": "precious", "content": "x"})
    await toolbox.call("terminal", {"command": "mkdir build; cd build; rmdir ../build"})
    for behind in (False, True):
        gone = await toolbox.call("terminal", {"command": "rm -rf -- *", "background": behind})
        assert (gone.ok, gone.error_kind) == (False, "not_found")
        assert "Nothing was run" in gone.content
        back = await toolbox.call("terminal", {"command": "ls; mkdir build; cd build; rmdir ../build"})
        assert back.data["output"] == "precious\n"
    await toolbox.call("terminal", {"command": "pwd", "workdir": "/tmp"})
    assert (await toolbox.call("terminal", {"command": "rm -rf -- *"})).error_kind == "not_found"
    assert (await toolbox.call("terminal", {"command": "ls"})).data["output"] == "precious\n"
