"""execute_code: Python in the slot that calls the tools of its toolbox, in its three modes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import pytest

from hermes_exec import ConfigError, SandboxPool, SlotClosed
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolOptions, ToolResult, tool
from hermes_exec.tools.options import CodeMode
from tests.conftest import require_engine
from tests.e2e.tools.conftest import Caller

TOOLSETS = ["terminal", "file", "code_execution"]
ENDLESS = [
    """
import signal, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
print('here', flush=True)
while True: time.sleep(1)
""",
    """
import os, time
print('here', flush=True)
for i in range(5):
    if os.fork() == 0: os.setsid(), time.sleep(1000)
time.sleep(1000)
""",
    """
import threading, time
print('here', flush=True)
threading.Thread(target=time.sleep, args=(1000,)).start()
""",
    """
from hermes_tools import terminal
print('here', flush=True)
terminal('sleep 1000')
""",
]
CLIENT = "import json, os, socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(os.environ['HERMES_TOOLS_SOCKET'])\n"


@tool
def web_search(query: str) -> dict[str, object]:
    """Search the web."""
    return {"hits": [f"about {query}"]}


@pytest.fixture
async def toolbox(slot: Slot) -> AsyncIterator[Toolbox]:
    async with Toolbox(slot, TOOLSETS, tools=[web_search]) as made:
        yield made


async def leftovers(slot: Slot) -> list[str]:
    """What programs left in the slot: their directories, and their processes."""
    found = await slot.files.list(slot.tmp)
    running = [" ".join(process.argv) for process in await slot.processes() if process.state != "Z"]
    return [stat.name for stat in found if "hermes-code" in stat.name] + [
        command for command in running if "python" in command or "sleep" in command
    ]


async def test_a_program_starts_from_the_session_and_calls_tools(call: Caller, slot: Slot) -> None:
    await call.sh("mkdir -p sub && cd sub && export WHO=me && printf 'def f():\\n    return 7\\n' > mine.py")
    code = """
import os, mine
from hermes_tools import json_parse, patch, read_file, retry, search_files, shell_quote, terminal
from hermes_tools import web_search, write_file
print(os.getcwd(), os.environ["WHO"], mine.f())
print(write_file("a.txt", "one\\ntwo\\n")["bytes_written"], read_file("a.txt")["content"])
print(patch(path="a.txt", old_string="two", new_string="three", mode="replace")["success"])
print(search_files("three")["total_count"])
print(terminal("echo " + shell_quote("it's") + "; exit 3"))
print(web_search("cats"))
print(json_parse('{"a": "x\\ty"}'), retry(lambda: 5))
print(read_file("no such file").get("error_kind"))
"""
    done = await call("execute_code", code=code)
    lines = str(done["output"]).splitlines()
    assert lines[0] == f"{slot.workdir}/sub me 7"
    assert lines[1:4] == ["8 1|one", "2|two", "True"]
    assert "it's" in lines[5]
    assert "'exit_code': 3" in lines[5]
    assert lines[6:] == ["{'hits': ['about cats']}", "{'a': 'x\\ty'} 5", "not_found"]
    assert (done["status"], done["exit_code"], done["tool_calls_made"]) == ("success", 0, 7)
    assert [str(made).split()[0] for made in done["tool_calls"]][:2] == ["write_file", "read_file"]
    assert str(done["tool_calls"][-1]).endswith(" s failed")
    assert (await call.sh("pwd")).strip().endswith("/sub")
    assert await leftovers(slot) == []


async def test_results_go_to_the_code_whole(call: Caller) -> None:
    code = 'from hermes_tools import terminal, read_file\nterminal("seq 100000 > big")\n'
    code += "print(sum(len(read_file('big', offset=1 + 2000 * i, limit=2000)['content']) for i in range(20)) > 200_000)"
    assert (await call("execute_code", code=code))["output"] == "True\n"


async def test_code_gets_again_what_it_read_before(call: Caller) -> None:
    """A repeated read or search is told to a model, which has the text already; code has not."""
    await call.sh("echo found > a.txt")
    code = """
from hermes_tools import read_file, search_files
print([read_file('a.txt')['content'] for _ in range(4)] == ['1|found'] * 4)
print({search_files('found')['total_count'] for _ in range(6)})
"""
    for _ in range(2):
        assert (await call("execute_code", code=code))["output"] == "True\n{1}\n"
    assert (await call("read_file", path="a.txt"))["content"] == "1|found"
    assert (await call("read_file", path="a.txt"))["status"] == "unchanged"


async def test_what_goes_wrong_is_told(call: Caller) -> None:
    failed = await call.fails("execute_code", code="import sys\nprint('before')\ndef f():\n    return 1 / 0\nf()")
    assert (failed.error_kind, failed.data["status"], failed.data["exit_code"]) == ("exit_code", "error", 1)
    assert str(failed.data["output"]).startswith("before\n--- stderr ---\nTraceback")
    assert 'program.py", line 4, in f' in str(failed.data["output"])
    assert failed.data["error"] == "ZeroDivisionError: division by zero"
    failed = await call.fails("execute_code", code="raise SystemExit(5)")
    assert failed.data["error"] == "The code ended with exit code 5."
    failed = await call.fails("execute_code", code="from hermes_tools import process")
    assert "cannot import name 'process'" in str(failed.data["error"])
    failed = await call.fails(
        "execute_code", code="import hermes_tools\nhermes_tools._call('execute_code', {'code': '1'})"
    )
    assert "cannot call the tool 'execute_code'; available: patch, read_file" in str(failed.data["error"])
    assert (await call.fails("execute_code", code=" \n")).error_kind == "bad_value"
    assert (await call.fails("execute_code", code="def")).data["status"] == "error"


async def test_long_output_is_cut_to_its_head_and_tail(call: Caller) -> None:
    done = await call("execute_code", code="print('first'); print('x' * 300_000); print('last')")
    output = str(done["output"])
    assert output.startswith("first\nxx")
    assert output.endswith("xx\nlast\n")
    assert (done["stdout_truncated"], done["stdout_bytes_total"], done["stdout_bytes_captured"]) == (
        True,
        300_012,
        50_000,
    )
    assert done["stdout_bytes_omitted"] == 250_012
    assert 50_000 < len(output) < 50_200
    done = await call("execute_code", code="import sys\nfor i in range(100): print('y' * 100_000)\nprint('end')")
    assert str(done["output"]).endswith("yy\nend\n")
    assert done["stdout_bytes_total"] == 10_000_104


async def test_output_that_is_not_kept_is_no_success(call: Caller) -> None:
    code = """
import glob, os, tempfile
print('x' * 400_000)
logs = []
while not logs or os.stat(logs[0]).st_size < 400_001:
    logs = glob.glob(f"{tempfile.gettempdir()}/**/*-stdout*", recursive=True)
os.truncate(logs[0], 0)
"""
    lost = await call.fails("execute_code", code=code)
    assert (lost.error_kind, lost.data["exit_code"]) == ("output_lost", 0)
    assert "is lost" in str(lost.data["error"])


async def test_calls_are_limited(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_max_calls=3)) as toolbox:
        code = "from hermes_tools import terminal\nfor i in range(5): print(terminal('echo hi').get('error'))"
        done = (await toolbox.call("execute_code", {"code": code})).data
    assert done["tool_calls_made"] == 3
    assert done["tool_calls_refused"] == "2, over the limit of 3: not made"
    assert (
        str(done["output"]).splitlines()
        == ["None"] * 3 + ["Tool call limit reached (3). No more tool calls in this program."] * 2
    )


async def test_what_was_printed_before_the_time_was_over_is_told(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_timeout_s=6)) as toolbox:
        ended = await toolbox.call("execute_code", {"code": "import time\nprint('so far')\ntime.sleep(60)"})
    assert (ended.error_kind, ended.data["output"]) == ("timeout", "so far\n")


async def test_a_program_that_does_not_end_is_ended_with_all_it_started(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_timeout_s=5)) as toolbox:
        for code in ENDLESS:
            started = time.monotonic()
            ended = await toolbox.call("execute_code", {"code": code})
            assert (ended.error_kind, ended.data["status"]) == ("timeout", "timeout"), ended.content
            assert ended.data["output"] == "here\n"
            assert ended.data["error"] == "The code was ended after 5 s."
            assert time.monotonic() - started < 60
            assert await leftovers(slot) == []
        code = "import subprocess\nfor i in range(3): subprocess.Popen(['sleep', '1000'], start_new_session=True)"
        done = await toolbox.call("execute_code", {"code": code})
        assert (done.data["output"], done.data["processes_ended"]) == ("", 3)
        assert await leftovers(slot) == []


async def test_a_call_that_is_cancelled_leaves_nothing(call: Caller, slot: Slot) -> None:
    with anyio.move_on_after(1.5) as scope:
        await call("execute_code", code="from hermes_tools import terminal\nterminal('sleep 1000')")
    assert scope.cancelled_caught
    assert await leftovers(slot) == []
    assert (await call("execute_code", code="print(2)"))["output"] == "2\n"


async def test_hostile_use_of_the_socket_ends_nothing_else(call: Caller) -> None:
    others = str((await call("execute_code", code="import os; print(os.environ['HERMES_TOOLS_TOKEN'])"))["output"])
    code = (
        f"stolen = {others.strip()!r}\n"
        + CLIENT
        + r"""
s.sendall(b"\xff\xfe not json\n"); print(s.recv(100)); s.close()
bad = json.dumps({"tool": "terminal", "arguments": {"command": "touch bad"}})
for text in ("[]", bad, stolen + "\n" + bad, "[" * 100_000):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HERMES_TOOLS_SOCKET"])
    s.sendall(text.encode() + b"\n"); print(s.recv(100)); s.close()
idle = []
for i in range(5):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HERMES_TOOLS_SOCKET"]); idle.append(s)
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HERMES_TOOLS_SOCKET"]); s.sendall(b"x" * 1000); s.close()
import hermes_tools
for arguments in ([], 5, None):
    try:
        hermes_tools._call("terminal", arguments)
    except hermes_tools.ToolError as error:
        print(error)
print(hermes_tools._call("terminal", {"comand": 1})["error_kind"])
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HERMES_TOOLS_SOCKET"])
try:
    for i in range(100): s.sendall(b"y" * (1 << 20))
except OSError:
    print("refused")
print(hermes_tools.terminal("ls")["exit_code"])
"""
    )
    done = await call("execute_code", code=code)
    lines = str(done["output"]).splitlines()
    assert lines[:5] == ["b''"] * 5
    assert lines[5:8] == ["terminal: the arguments are not an object"] * 3
    assert lines[9:] == ["refused", "0"]
    assert not (await call.toolbox.call("read_file", {"path": "bad"})).ok


async def test_requests_without_the_token_or_with_much_structure_are_not_parsed(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest, loads = [0], json.loads

    def counting(text: str, **more: Any) -> object:
        longest[0] = max(longest[0], len(text))
        return loads(text, **more)

    monkeypatch.setattr(json, "loads", counting)
    code = (
        CLIENT
        + r"""
token = os.environ["HERMES_TOOLS_TOKEN"].encode()
lists = b"[" + b"[]," * (1 << 20) + b"1]\n"
def answer(data):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HERMES_TOOLS_SOCKET"])
    try:
        s.sendall(data)
        return s.makefile().readline()
    except OSError:
        return ""
print([answer(data) for data in (lists, token + lists, token + b"0\n" + lists)] == ["", "", ""])
print("at most 262144 bytes outside" in answer(token + b"\n" + lists))
print("at most 262144 bytes outside" in answer(token + b"\n" + b'["\\\\",' + lists[:-1] + b'"]\n'))
print("at most 262144 bytes outside" in answer(token + b"\n[" + b'"",' * (1 << 20) + b'""]\n'))
wide = ('["\u2200",' + "[]," * 400_000 + "1]").encode("utf-16")
print("one line of JSON" in answer(token + b"\n" + wide + b"\n"))
import hermes_tools
text = "[[],\"\\" * 300_000
print(hermes_tools.write_file("long", text)["bytes_written"], open("long").read() == text)
try:
    hermes_tools.write_file("longer", "x" * (4 << 20))
except hermes_tools.ToolError as error:
    print("pass data in a file" in str(error))
"""
    )
    done = await call("execute_code", code=code)
    assert str(done["output"]).splitlines() == [*["True"] * 5, "1800000 True", "True"]
    assert longest[0] < 3 << 20


async def test_calls_that_are_refused_count(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_max_calls=3)) as toolbox:
        code = """
import hermes_tools
for i in range(5):
    try:
        print(hermes_tools._call("none", {})["error"])
    except hermes_tools.ToolError as error:
        print(error)
"""
        done = (await toolbox.call("execute_code", {"code": code})).data
    assert (done["tool_calls_made"], done["tool_calls_refused"]) == (0, "2, over the limit of 3: not made")
    assert ["limit reached" in line for line in str(done["output"]).splitlines()] == [False] * 3 + [True] * 2


async def test_arguments_of_any_depth_end_nothing(call: Caller) -> None:
    code = """
import hermes_tools
for name in ("terminal", "write_file", "patch", "search_files", "web_search"):
    for depth in (*range(100, 1000, 60), 5000):
        deep = "[" * depth + "]" * depth
        s = hermes_tools.socket.socket(hermes_tools.socket.AF_UNIX)
        s.connect(hermes_tools.os.environ["HERMES_TOOLS_SOCKET"])
        line = '{"tool": "%s", "arguments": {"query": %s, "path": %s, "command": %s}}\\n' % (name, deep, deep, deep)
        s.sendall((hermes_tools.os.environ["HERMES_TOOLS_TOKEN"] + "\\n" + line).encode())
        assert s.makefile().readline().endswith("\\n")
"""
    await call("execute_code", code=code)


@pytest.mark.parametrize("mode", ["project", "strict", "kernel"])
async def test_errors_of_successful_code_are_in_output(slot: Slot, mode: CodeMode) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode=mode)) as toolbox:
        call = Caller(toolbox)
        done = await call("execute_code", code="import logging\nlogging.warning('careful')\nprint(1)")
        assert (done["status"], done["output"]) == ("success", "1\n--- stderr ---\nWARNING:root:careful\n")
        assert (await call("execute_code", code="print(2)"))["output"] == "2\n"


@pytest.mark.parametrize("mode", ["project", "strict", "kernel"])
async def test_cut_output_is_whole_in_slot(slot: Slot, mode: CodeMode) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode=mode)) as toolbox:
        call = Caller(toolbox)
        code = "import sys\nfor n in range(40_000): print(n, file=sys.stderr if n < 10_000 else sys.stdout)"
        await call("execute_code", code="print('earlier')")
        output = str((await call("execute_code", code=code))["output"])
        paths = re.findall(r"; the full output is in (\S+), see read_file\]", output)
        whole = [await slot.files.read_text(path) for path in paths]
        assert whole == ["".join(f"{n}\n" for n in part) for part in (range(10_000, 40_000), range(10_000))]
        output = str((await call("execute_code", code="print('x' * (70 << 20))"))["output"])
        (path,) = re.findall(r"; the kept part of it is in (\S+), see read_file\]", output)
        assert (await slot.files.stat(path)).size > 32 << 20


async def test_threads_and_children_of_a_program_call_too(call: Caller) -> None:
    code = """
import subprocess, sys, threading
from hermes_tools import terminal
answers = [None] * 12
def ask(i): answers[i] = terminal(f"echo {i}")["output"].strip()
threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(answers == [str(i) for i in range(12)])
child = "import hermes_tools; print(hermes_tools.terminal('echo child')['output'])"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
"""
    assert (await call("execute_code", code=code))["output"] == "True\nchild\n"


async def test_strict_runs_apart_from_the_session(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode="strict")) as toolbox:
        call = Caller(toolbox)
        await call.sh("export WHO=me; touch here")
        code = "import os\nfrom hermes_tools import terminal\n"
        code += "print(os.environ.get('WHO'), 'here' in os.listdir(), 'here' in terminal('ls')['output'])"
        assert (await call("execute_code", code=code))["output"] == "None False True\n"


async def test_an_image_without_python_is_told(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    async with SandboxPool("docker", image=docker_image("busybox"), max_sandboxes=1) as pool, pool.slot() as slot:
        for mode in ("project", "kernel"):
            options = ToolOptions(code_mode=mode)
            async with Toolbox(slot, TOOLSETS, options=options) as toolbox:
                failed = await toolbox.call("execute_code", {"code": "print(1)"})
                assert failed.error_kind == "no_python"
                assert "has no Python" in failed.content


async def test_the_end_of_the_slot_is_no_result(slot: Slot) -> None:
    async with Toolbox(slot, TOOLSETS) as toolbox, anyio.create_task_group() as tasks:

        async def reset() -> None:
            await anyio.sleep(1)
            await slot.reset()

        tasks.start_soon(reset)
        with pytest.raises(SlotClosed):
            await toolbox.call("execute_code", {"code": "import time\ntime.sleep(1000)"})


async def test_calls_of_code_go_through_what_is_put_around_them(slot: Slot) -> None:
    seen: list[tuple[str, object]] = []

    async def around(name: str, arguments: Mapping[str, object], make: Callable[[], Any]) -> ToolResult:
        seen.append((name, dict(arguments)))
        if name == "write_file":
            return ToolResult(name, "{}", {"error": "not now"}, False, "blocked", 0.0, "")
        result: ToolResult = await make()
        return result

    async with Toolbox(slot, TOOLSETS) as toolbox:
        toolbox.around_calls_of_code = around
        code = "from hermes_tools import *\nprint(write_file('a', 'b'), terminal('ls')['output'])"
        done = await toolbox.call("execute_code", {"code": code})
    assert done.data["output"] == "{'error': 'not now'} \n"
    assert seen == [("write_file", {"path": "a", "content": "b"}), ("terminal", {"command": "ls"})]


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="code_mode is project, strict or kernel, not 'fast'"):
        ToolOptions(code_mode="fast")  # type: ignore[arg-type]


async def test_listening_in_a_slot(slot: Slot) -> None:
    path = f"{slot.tmp}/callback"
    async with slot.listen(path) as listener, anyio.create_task_group() as tasks:

        async def serve() -> None:
            connection = await listener.accept()
            await connection.send(b"hello " + await connection.receive())
            await connection.aclose()

        tasks.start_soon(serve)
        code = f"{CLIENT}s.sendall(b'me')\nprint(s.makefile('rb').read())"
        asked = await slot.run(["python3", "-c", code], env={"HERMES_TOOLS_SOCKET": path})
        assert asked.stdout == "b'hello me'\n", asked.stderr
        with pytest.raises(OSError, match="callback"):
            await slot.listen(path).__aenter__()
    assert not await slot.files.exists(path)
    with pytest.raises(ConnectionAbortedError):
        await listener.accept()
    with pytest.raises(OSError, match="too long"):
        await slot.listen("/" + "x" * 200).__aenter__()
