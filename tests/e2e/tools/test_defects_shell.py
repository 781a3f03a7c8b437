"""Each row of the shell semantics that earlier systems got wrong."""

from __future__ import annotations

import json
import time

import anyio
import pytest

from hermes_exec import ExecError, Limits, SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, tool
from tests.e2e.tools.conftest import Caller


async def test_b1_aliases_and_functions_survive_the_following_commands(call: Caller) -> None:
    await call.sh("alias hi='echo hello'; greet() { echo \"good $1\"; }; unexported=7; export EXPORTED=8; umask 027")
    await call.sh("true")
    await call.sh("export OTHER=1")
    assert await call.sh("hi; greet day; echo $unexported $EXPORTED; umask") == "hello\ngood day\n7 8\n0027\n"


async def test_b2_exit_in_a_command_keeps_directory_and_variables(call: Caller) -> None:
    result = await call.fails("terminal", command="mkdir -p sub; cd sub; export KEPT=yes; exit 3")
    assert result.data["exit_code"] == 3
    assert await call.sh('basename "$PWD"; echo $KEPT') == "sub\nyes\n"


async def test_b2_a_command_that_closes_its_output_keeps_its_state(call: Caller) -> None:
    await call.sh('mkdir -p sub; cd sub; export KEPT=yes; exec >&- 2>&-; for i in {3..254}; do eval "exec $i>&-"; done')
    assert await call.sh('basename "$PWD"; echo $KEPT') == "sub\nyes\n"
    told = await call("terminal", command="export KEPT=no; exec true")
    assert "were not kept" in told["state_note"]
    assert await call.sh("echo $KEPT") == "yes\n"


async def test_b3_concurrent_commands_lose_no_update(toolbox: Toolbox, call: Caller) -> None:
    async with anyio.create_task_group() as group:
        for index in range(12):
            group.start_soon(toolbox.call, "terminal", {"command": f"export V{index}={index}; cd /tmp"})
            group.start_soon(toolbox.call, "process", {"action": "list"})
    names = " ".join(f"$V{index}" for index in range(12))
    assert await call.sh(f"echo {names}; pwd") == " ".join(map(str, range(12))) + "\n/tmp\n"


async def test_b4_written_content_arrives_whole(call: Caller) -> None:
    content = "".join(f"line {i} 'quoted' \"twice\" $HOME `x` \\ EOF\n" for i in range(5_000)) + "no final newline"
    written = await call("write_file", path="big.txt", content=content)
    assert written["bytes_written"] == len(content)
    assert await call.sh("wc -c < big.txt | tr -d ' '") == f"{len(content)}\n"
    assert await call.sh("cat > here.txt <<'EOF'\none\ntwo\nEOF\ncat here.txt") == "one\ntwo\n"


async def test_b5_a_timeout_ends_the_whole_tree(call: Caller, slot: Slot) -> None:
    command = "sh -c 'sleep 3141 & setsid sleep 3141 & (trap \"\" TERM; sleep 3141) & sleep 3141'"
    result = await call.fails("terminal", command=command, timeout=1)
    assert result.data["exit_code"] == 124
    assert "[Command timed out after 1s]" in str(result.data["output"])
    assert result.error_kind == "timeout"
    left = [one for one in await slot.processes() if "3141" in one.argv]
    assert left == []


async def test_b6_words_in_the_output_never_run_a_command_again(call: Caller) -> None:
    text = "Error: No such container: x is not running; no permissions to create new namespace"
    result = await call.fails("terminal", command=f"echo ran >> runs.txt; echo '{text}' >&2; exit 1")
    assert result.data["output"] == text + "\n"
    assert await call.sh("cat runs.txt") == "ran\n"


async def test_b7_a_limit_holds_or_is_named_or_refused() -> None:
    refusals: list[str] = []
    try:
        async with SandboxPool("local", slot_limits=Limits(open_files=64, pids=50)) as limited, limited.slot() as slot:
            assert slot.isolation.limits["open_files"] not in ("", "not enforced")
            assert slot.isolation.limits["pids"] not in ("", "not enforced")
            assert await Caller(Toolbox(slot)).sh("ulimit -n") == "64\n"
    except ExecError as refused:
        refusals.append(str(refused))
    assert all("pids" in text or "open_files" in text for text in refusals)


async def test_b8_a_second_pool_never_meets_what_the_first_left(slot: Slot, call: Caller, pool: SandboxPool) -> None:
    await call.sh("echo dirty > left-behind; echo dirty > $HOME/left-behind; echo dirty > $TMPDIR/left-behind")
    async with SandboxPool("local") as other, other.slot() as fresh:
        listing = await Caller(Toolbox(fresh)).sh("ls -A . $HOME $TMPDIR")
    assert "left-behind" not in listing
    assert pool is not other


async def test_b9_slots_share_neither_directory_nor_variables(call: Caller, pool: SandboxPool) -> None:
    await call.sh("mkdir mine; cd mine; export MINE=1; echo x > file")
    async with pool.slot() as second:
        other = Caller(Toolbox(second))
        assert await other.sh("echo [$MINE]; ls -A; pwd") == f"[]\n{second.workspace}\n"
    assert await call.sh('echo $MINE; basename "$PWD"; ls') == "1\nmine\nfile\n"


async def test_b10_ending_everything_of_a_slot_ends_it(call: Caller, slot: Slot) -> None:
    started = await call("terminal", command="sleep 2718 & echo up; sleep 2718", background=True)
    one = started["session_id"]
    while "up" not in (await call("process", action="poll", session_id=one))["output_preview"]:
        pass
    receipt = await slot.kill_all()
    assert receipt.killed >= 2
    assert receipt.left == 0
    assert [one for one in await slot.processes() if "2718" in one.argv] == []
    polled = await call("process", action="poll", session_id=one)
    assert polled["status"] == "exited"


@pytest.mark.parametrize("ending", ["exit 7", "kill -9 $$", "kill -TERM 0", "no-such-program", "echo x; false"])
async def test_b11_a_failing_command_is_never_run_twice(call: Caller, ending: str) -> None:
    await call.fails("terminal", command=f"echo ran >> runs.txt; {ending}")
    assert await call.sh("cat runs.txt") == "ran\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo pip install uvicorn",
        "echo npx vite build",
        "echo docker compose up -d",
        "cat <<'EOF'\n6 & 3\nEOF",
        "nohup true",
        "setsid true",
        "true & wait",
        "echo npm run dev; echo flask run",
        "echo rm -rf /",
    ],
)
async def test_b12_nothing_is_refused_for_its_words(call: Caller, command: str) -> None:
    data = await call("terminal", command=command)
    assert data["exit_code"] == 0
    assert data["error"] is None


async def test_b12_a_program_left_running_does_not_hold_the_call(call: Caller) -> None:
    started = time.monotonic()
    await call.sh("sleep 60 & echo started")
    assert time.monotonic() - started < 40


@pytest.mark.parametrize(
    "name", ["with (parens)", "[brackets]", "übung ☕", "semi;colon", "$dollar `tick`", "new\nline", "'q\"q"]
)
async def test_b13_any_directory_can_be_a_workdir(call: Caller, slot: Slot, name: str) -> None:
    await slot.files.mkdir(name)
    assert await call.sh('basename "$PWD"; echo here > f', workdir=name) == name + "\n"
    assert await slot.files.read_text(f"{name}/f") == "here\n"
    assert await call.sh("pwd") == f"{slot.workspace}\n"


async def test_b13_a_workdir_that_is_not_there_is_an_error_result(call: Caller, slot: Slot) -> None:
    result = await call.fails("terminal", command="pwd", workdir="/nowhere")
    assert result.error_kind == "not_found"
    assert "/nowhere" in str(result.data["error"])
    await slot.files.write_text("file", "x")
    assert (await call.fails("terminal", command="pwd", workdir="file")).error_kind == "not_a_directory"


async def test_b14_no_traceback_of_the_host_reaches_the_model(slot: Slot) -> None:
    @tool
    def breaks(word: str) -> str:
        """Break."""
        raise RuntimeError(f"cannot {word}")

    result = await Toolbox(slot, tools=["terminal", breaks]).call("breaks", {"word": "do"})
    assert result.error_kind == "tool_failed"
    assert result.data["error"] == "breaks failed: RuntimeError: cannot do"
    for arguments in ("{", '{"command": 5}', {"command": "\0"}, {"command": "x", "workdir": "\0"}):
        content = (await Toolbox(slot).call("terminal", arguments)).content
        assert "Traceback" not in content
        assert ".py" not in content
        assert "error" in json.loads(content)


async def test_b15_what_a_command_prints_arrives_unaltered(call: Caller) -> None:
    secret = (
        "export OPENAI_API_KEY=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 password=hunter2 "
        "ghp_0123456789abcdefghijABCDEFGHIJ"
    )
    await call("write_file", path="env", content=secret + "\n")
    assert await call.sh("cat env") == secret + "\n"
    assert (await call("read_file", path="env"))["content"] == "1|" + secret
