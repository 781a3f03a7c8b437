"""Output of tools while they run, and the images of host tools."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread
import pytest

from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import HostResult, Toolbox, ToolOptions, tool
from hermes_exec.tools.options import CodeMode

PNG = b"\x89PNG\r\n\x1a\nrest"


class Pieces:
    """The pieces of output of a call, with the time of the first one."""

    def __init__(self) -> None:
        self.streams: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.first_at: float | None = None

    def __call__(self, stream: str, data: bytes) -> None:
        self.first_at = self.first_at or time.monotonic()
        self.streams[stream] += data

    def came_early(self, ended_at: float) -> bool:
        """Whether the first piece came well before the end."""
        return self.first_at is not None and ended_at - self.first_at > 0.4


@pytest.mark.loops
@pytest.mark.parametrize("pty", [False, True])
async def test_terminal_output_comes_while_it_runs(toolbox: Toolbox, *, pty: bool) -> None:
    pieces = Pieces()
    call = {"command": "echo one; sleep 0.8; echo two >&2; exit 3", "pty": pty}
    result = await toolbox.call("terminal", call, on_output=pieces)
    assert pieces.came_early(time.monotonic())
    assert pieces.streams == {"stdout": b"one\r\ntwo\r\n" if pty else b"one\ntwo\n", "stderr": b""}
    assert (result.data["output"], result.data["exit_code"], result.failure) == ("one\ntwo\n", 3, "command")


async def test_wait_gives_output_since_the_call(slot: Slot, toolbox: Toolbox) -> None:
    started = await toolbox.call(
        "terminal", {"command": "echo zero; read x; echo one; sleep 0.8; echo two; read y", "background": True}
    )
    session = {"session_id": started.data["session_id"]}
    (process,) = await slot.spawned()
    assert await process.stdout.receive() == b"zero\n"
    await process.stdout.aclose()
    pieces = Pieces()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(toolbox.call, "process", {"action": "submit", "data": "", **session})
        waited = await toolbox.call("process", {"action": "wait", "timeout": 2, **session}, on_output=pieces)
    assert pieces.came_early(time.monotonic())
    assert waited.data["status"] == "timeout"
    assert pieces.streams["stdout"] == b"one\ntwo\n"
    last = Pieces()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(toolbox.call, "process", {"action": "wait", **session}, None, last)
        await toolbox.call("process", {"action": "write", "data": "\n", **session})
    assert last.streams["stdout"] == b""


@pytest.mark.parametrize("mode", ["project", "kernel"])
async def test_code_output_comes_while_it_runs(slot: Slot, mode: CodeMode) -> None:
    code = (
        "import sys, time\nfor word in ('one', 'two'):\n"
        "    print(word, flush=True)\n    print('err', file=sys.stderr)\n    time.sleep(0.5)\nprint('last\\0')"
    )
    async with Toolbox(slot, ["code_execution"], options=ToolOptions(code_mode=mode)) as toolbox:
        for _ in range(2):
            pieces = Pieces()
            result = await toolbox.call("execute_code", {"code": code}, on_output=pieces)
            assert result.ok, result.content
            assert pieces.came_early(time.monotonic())
            assert pieces.streams == {"stdout": b"one\ntwo\nlast\0\n", "stderr": b"err\nerr\n"}


async def test_long_output_of_code_is_whole(slot: Slot) -> None:
    pieces = Pieces()

    async def take(stream: str, data: bytes) -> None:
        await anyio.sleep(0.001)
        pieces(stream, data)

    async with Toolbox(slot, ["code_execution"]) as toolbox:
        code = "for n in range(200000): print(n)"
        assert (await toolbox.call("execute_code", {"code": code}, on_output=take)).ok
    assert pieces.streams["stdout"] == b"".join(b"%d\n" % n for n in range(200_000))


@pytest.mark.parametrize("name", ["terminal", "execute_code"])
async def test_an_error_of_the_callback_ends_the_call(slot: Slot, name: str) -> None:
    def fail(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    arguments = {
        "terminal": {"command": "echo one; sleep 60"},
        "execute_code": {"code": "print(1)\nimport time\ntime.sleep(60)"},
    }
    async with Toolbox(slot, ["terminal", "code_execution"]) as toolbox:
        with anyio.fail_after(20), pytest.raises(LookupError):
            await toolbox.call(name, arguments[name], on_output=fail)
        assert (await toolbox.call("terminal", {"command": "echo still here"})).data["output"] == "still here\n"


async def test_cancelling_a_call_with_output_ends_its_processes(slot: Slot, toolbox: Toolbox) -> None:
    with anyio.move_on_after(0.5):
        await toolbox.call("terminal", {"command": "echo one; sleep 61", "pty": True}, on_output=Pieces())
    assert not [process for process in await slot.processes() if "61" in process.argv]


async def test_blocking_toolbox_passes_output() -> None:
    pieces = Pieces()

    def work() -> None:
        with SandboxPool("local") as pool, pool.slot() as slot, Toolbox(slot) as toolbox:
            toolbox.call("terminal", {"command": "echo one"}, on_output=pieces)

    await anyio.to_thread.run_sync(work)
    assert pieces.streams["stdout"] == b"one\n"


@tool
def plot() -> HostResult:
    """Plot something."""
    return HostResult({"points": 3}, [PNG, PNG])


@tool
def broken() -> HostResult:
    """Return something else."""
    return HostResult(None, [b"GIF89a"])


async def test_host_tools_return_images(slot: Slot) -> None:
    toolbox = Toolbox(slot, tools=[plot, broken])
    result = await toolbox.call("plot")
    assert (result.data, result.images, result.shows_images) == ({"points": 3}, (PNG, PNG), False)
    assert (await Toolbox(slot, tools=[plot], options=ToolOptions(native_images=True)).call("plot")).shows_images
    refused = await toolbox.call("broken")
    assert (refused.error_kind, refused.images) == ("tool_failed", ())
    assert refused.data["error"] == "broken returned an image that is not a PNG image"
