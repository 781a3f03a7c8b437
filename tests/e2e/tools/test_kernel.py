"""execute_code with a kernel, which keeps what its code has made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolOptions, ToolResult
from tests.e2e.tools.conftest import Caller
from tests.e2e.tools.test_execute_code import TOOLSETS, leftovers

ENDS_LATER = """
import os, threading, time
def end():
    while not os.path.exists('end'): time.sleep(0.05)
    os._exit(4)
threading.Thread(target=end).start()
"""


@pytest.fixture
async def kernel(slot: Slot) -> AsyncIterator[Caller]:
    async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode="kernel", code_timeout_s=60)) as made:
        yield Caller(made)


async def timed_out(kernel: Caller, code: str) -> ToolResult:
    """The result of code that takes too long."""
    state = kernel.toolbox._state
    usual, state.options = state.options, replace(state.options, code_timeout_s=4)
    result = await kernel.fails("execute_code", code=code)
    state.options = usual
    assert result.error_kind == "timeout"
    return result


async def test_a_kernel_keeps_its_variables(kernel: Caller, slot: Slot) -> None:
    assert (await kernel("execute_code", code="x = 20\nx + 1"))["output"] == "21\n"
    assert (await kernel("execute_code", code="x += 1\nprint(x)"))["output"] == "21\n"
    failed = await kernel.fails("execute_code", code="def f():\n    return missing\nf()")
    assert 'File "<code 3>", line 2, in f\n    return missing' in str(failed.data["output"])
    code = "from hermes_tools import terminal\nterminal('pwd')['output'].strip()"
    done = await kernel("execute_code", code=code)
    assert (done["output"], done["tool_calls_made"]) == (f"'{slot.workdir}'\n", 1)
    assert (await kernel("execute_code", code="import os\nos.system('echo from a child')"))[
        "output"
    ] == "from a child\n0\n"
    interrupted = await timed_out(kernel, "print('a', flush=True)\nwhile True: pass")
    assert str(interrupted.data["output"]).startswith("a\n--- stderr ---\nTraceback")
    assert (await kernel("execute_code", code="x"))["output"] == "21\n"
    assert (await kernel("execute_code", code="print('z' * 300_000)"))["stdout_bytes_total"] == 300_001
    assert (await kernel("execute_code", code="raise SystemExit"))["output"] == ""
    for end, told in (("'no such file'", "no such file"), ("3", "exit code 3")):
        assert (await kernel.fails("execute_code", code=f"import sys\nsys.exit({end})")).data["error"] == told


async def test_a_fork_of_a_kernel_ends_with_its_code(kernel: Caller) -> None:
    code = "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint('parent' if pid else 'child')"
    assert (await kernel("execute_code", code=code))["output"] == "child\nparent\n"
    for number in range(4):
        assert (await kernel("execute_code", code=f"{number}"))["output"] == f"{number}\n"


async def test_a_kernel_that_is_lost_says_so(kernel: Caller, slot: Slot) -> None:
    await kernel("execute_code", code="x = 1")
    lost = await kernel.fails("execute_code", code="import os\nos._exit(3)")
    assert lost.data["warning"] == "All variables are lost: the Python that kept them ended with exit code 3."
    assert "name 'x' is not defined" in str((await kernel.fails("execute_code", code="x")).data["error"])
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    lost = await timed_out(kernel, code)
    assert lost.data["warning"] == "All variables are lost: it did not let itself be interrupted."
    await kernel("execute_code", code=ENDS_LATER)
    await slot.files.write_text("end", "")
    running = kernel.toolbox._state.kernel
    assert running is not None
    assert await running.end_reason(60)
    done = await kernel("execute_code", code="1")
    assert "gone before this code ran: the Python that kept them ended with exit code 4" in str(done["warning"])
    await kernel("execute_code", code="x = 1")
    async with anyio.create_task_group() as tasks:
        code = "import time; open('begun', 'w').close(); time.sleep(60)"
        tasks.start_soon(partial(kernel, "execute_code", code=code))
        while not await slot.files.exists("begun"):
            pass
        tasks.cancel_scope.cancel()
    given_up = await kernel.fails("execute_code", code="x")
    assert "gone before this code ran: the call before was given up." in str(given_up.data["warning"])
    assert "warning" not in await kernel("execute_code", code="1")
    await slot.reset()
    assert "name 'x' is not defined" in str((await kernel.fails("execute_code", code="x")).data["error"])
    await kernel.toolbox.aclose()
    assert await leftovers(slot) == []


@pytest.mark.parametrize(
    "code",
    [
        """subprocess.run("trap '' INT; sleep 1001; true", shell=True)""",
        """subprocess.run("trap '' INT TERM; setsid sh -c 'sleep 1001; true' & sleep 1001; true", shell=True)""",
        """
for _ in range(3):
    subprocess.Popen(["env", "-i", "sh", "-c", "trap '' INT TERM; sleep 1001; true"], start_new_session=True)
while True: pass
""",
    ],
)
async def test_timeout_of_kernel_ends_processes_of_code(kernel: Caller, slot: Slot, code: str) -> None:
    earlier = """
import subprocess, time
server = subprocess.Popen(["sleep", "1000"], start_new_session=True)
time.sleep(0.05)  # the kernel counts start times in 10 ms
x = 20
"""
    await kernel("execute_code", code=earlier)
    ended = await timed_out(kernel, code)
    assert isinstance(count := ended.data["processes_ended"], int)
    assert count >= 1
    assert "warning" not in ended.data
    assert [command for command in await leftovers(slot) if "sleep" in command] == ["sleep 1000"]
    assert (await kernel("execute_code", code="x, server.poll()"))["output"] == "(20, None)\n"


async def test_timeout_of_kernel_without_interrupt_ends_everything(kernel: Caller, slot: Slot) -> None:
    ended = await timed_out(kernel, """import os; os.system("trap '' INT; sleep 1001; true")""")
    assert isinstance(count := ended.data["processes_ended"], int)
    assert count >= 3
    assert ended.data["warning"] == "All variables are lost: it did not let itself be interrupted."
    assert await leftovers(slot) == []


WRITES_TO_ITS_SOCKET = """
import os, socket, time
for number in range(3, 60):
    try:
        own = socket.socket(fileno=os.dup(number))
    except OSError:
        continue
    if own.family == socket.AF_UNIX:
        own.sendall(({}).encode() + b"\\n")
time.sleep(60)
"""


@pytest.mark.parametrize(
    "answer",
    [
        "'[' * 200_000",
        """'{"ok": true, "images": ' + '[' * 200_000""",
        """'["ok"]'""",
        """'{"ok": 1}'""",
        "'[' + '[],' * 200_000",
        "'x' * (5 << 20)",
    ],
)
async def test_a_kernel_whose_code_answers_for_it_is_lost(kernel: Caller, answer: str) -> None:
    lost = await kernel.fails("execute_code", code="print(7)" + WRITES_TO_ITS_SOCKET.format(answer))
    assert lost.data["warning"] == "All variables are lost: the code wrote to the socket of its Python."
    assert lost.data["output"] == "7\n"
    assert (await kernel("execute_code", code="1"))["output"] == "1\n"


async def test_images_that_a_kernel_cannot_have_are_left_out(slot: Slot) -> None:
    await slot.run("mkfifo fifo; ln -s /dev/zero zero")
    no_paths: list[Any] = [5, None, [], "", "a\0b", "\ud800", "x" * 300_000]
    paths = ["\udcff", "fifo", "zero", "/dev/zero", "/", "/proc/self/mem"]
    options = ToolOptions(code_mode="kernel", native_images=True)
    async with Toolbox(slot, ["code_execution"], options=options) as toolbox:
        for told, left in (
            (no_paths + paths[:3], paths[:3]),
            (no_paths + paths[3:], paths[3:]),
            (5, None),
            ({}, None),
            ("text", None),
        ):
            code = f"""
import gc
kernel = next(one for one in gc.get_objects() if type(one).__name__ == "Kernel")
kernel.save_figures = lambda: {told!r}
"""
            shown = await toolbox.call("execute_code", {"code": code})
            assert (shown.ok, shown.images, shown.data.get("images")) == (True, (), left)


async def test_figures_of_a_kernel_are_images_in_the_slot(kernel: Caller, slot: Slot) -> None:
    drawing = """
import sys, types
class Figure:
    def savefig(self, path): open(path, "wb").write(b"\\x89PNG\\r\\n\\x1a\\n")
pyplot = types.ModuleType("matplotlib.pyplot")
pyplot.open = [1, 2]
pyplot.get_fignums, pyplot.figure = (lambda: list(pyplot.open)), (lambda number: Figure())
pyplot.close = pyplot.open.remove
sys.modules["matplotlib.pyplot"] = pyplot
"""
    drawn = await kernel.toolbox.call("execute_code", {"code": drawing})
    images: Any = drawn.data["images"]
    assert drawn.images == ()
    assert "images" not in await kernel("execute_code", code="1")
    await kernel.fails("execute_code", code="import os; os._exit(1)")
    assert [await slot.files.read_bytes(path) for path in images] == [b"\x89PNG\r\n\x1a\n"] * 2
    options = ToolOptions(code_mode="kernel", native_images=True)
    async with Toolbox(slot, ["code_execution"], options=options) as of_one_who_sees:
        drawn = await of_one_who_sees.call("execute_code", {"code": drawing})
        assert drawn.images == (b"\x89PNG\r\n\x1a\n",) * 2
        fake = drawing.replace("PNG", "GIF")
        assert (await of_one_who_sees.call("execute_code", {"code": fake})).images == ()
