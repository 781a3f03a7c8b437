"""What pages, and programs that have taken a browser's pipe, do to the driver that slots share: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from hermes_exec import ExecError, OutcomeUnknown, SandboxPool
from hermes_exec.backends.owner import descendants
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from hermes_exec.tools.browser.playwright_driver import LINGER_S
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import Surfer

T = TypeVar("T")
MIB = 1 << 20
PAGE = "data:text/html,<title>Neighbour</title><button>here</button>"
FLOODS = {
    "console": "let logged = 0;"
    "setInterval(() => { for (let i = 0; i < 2000; i++) console.log('x'.repeat(2000), logged++) }, 1)",
    "exceptions": "setInterval(() => { for (let i = 0; i < 500; i++)"
    " setTimeout(() => { throw Error('x'.repeat(5000)) }) }, 1)",
    "objects": "const o = {}; for (let i = 0; i < 3000; i++) o['k' + i] = 'z'.repeat(500);"
    "setInterval(() => { for (let i = 0; i < 50; i++) console.log(o, o, [o, o]) }, 1)",
    "arguments": "const big = 'y'.repeat(20 << 20); setInterval(() => console.log(big, big), 1)",
    "requests": "setInterval(() => { for (let i = 0; i < 200; i++)"
    " fetch('http://localhost:1/' + Math.random() + 'x'.repeat(20000)).catch(() => 0) }, 1)",
    "sockets": "setInterval(() => { for (let i = 0; i < 20; i++)"
    " new WebSocket('ws://localhost:1/' + 'x'.repeat(3000)) }, 1)",
    "history": "let n = 0; setInterval(() => { for (let i = 0; i < 500; i++)"
    " history.pushState(0, '', '#' + n++ + 'x'.repeat(3000)) }, 1)",
    "frames": "setInterval(() => { for (let i = 0; i < 50; i++) { const f = document.createElement('iframe');"
    " document.body.append(f); f.remove() } }, 1)",
    "title": "setInterval(() => { document.title = 'x'.repeat(30 << 20) }, 100)",
    "downloads": "setInterval(() => { for (let i = 0; i < 20; i++) Object.assign(document.createElement('a'),"
    " {download: 'f' + Math.random(), href: 'data:text/plain,hello'}).click() }, 5)",
    "dialogs": "setInterval(() => alert('x'.repeat(100000)), 1)",
    "workers": "setInterval(() => { for (let i = 0; i < 5; i++)"
    " new Worker('data:text/javascript,setInterval(() => 0, 1000)') }, 10)",
    "tabs": "setInterval(() => { for (let i = 0; i < 5; i++) open('about:blank') }, 10)",
}
WRITE = """
import ctypes, os, pathlib, sys
for entry in pathlib.Path("/proc").iterdir():
    if entry.name.isdecimal():
        try:
            words = (entry / "cmdline").read_bytes().split(bytes(1))
        except OSError:
            continue
        if b"--remote-debugging-pipe" in words and not any(word.startswith(b"--type=") for word in words):
            pipe = ctypes.CDLL(None).syscall(438, os.pidfd_open(int(entry.name)), 4, 0)  # pidfd_getfd
            os.write(pipe, sys.argv[1].encode() + bytes(1))
"""
CALL = """(async () => {
    const call = new RTCPeerConnection({iceServers: [{urls: 'stun:%s'}]});
    call.createDataChannel('x');
    await call.setLocalDescription(await call.createOffer());
    await new Promise(done => setTimeout(done, 3000));
})()"""
NEVER = "new Promise(() => 0)"
BUSY = "data:text/html,<script>const begun = Date.now(); while (Date.now() < begun + 2000);</script>ok"
FORGED = {
    "no JSON": "garbage",
    "no object": "[]",
    "not asked": '{"id":99999999,"result":{}}',
    "a true id": '{"id":true,"result":{}}',
    "no event": '{"method":"error","params":{}}',
}
NONSENSE = {
    "target": '{"method":"Target.attachedToTarget","params":{}}',
    "download": '{"method":"Browser.downloadWillBegin","params":{}}',
    "progress": '{"method":"Browser.downloadProgress","params":{"guid":[],"receivedBytes":"x"}}',
}


def sampled(names: Iterable[str]) -> list[Any]:
    """All of them as parameters, the first of which is in every run."""
    return [pytest.param(name, marks=[pytest.mark.whole] if number else []) for number, name in enumerate(names)]


@pytest.fixture
async def two(anyio_backend: str) -> AsyncIterator[tuple[Slot, Slot]]:
    require_engine("chromium")
    async with (
        SandboxPool("local", network=False, slots_per_sandbox=2) as pool,
        pool.slot() as one,
        pool.slot() as other,
    ):
        yield one, other


def drivers() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"run-driver" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ended_during(driver: int, call: Awaitable[T]) -> T:
    """What a call gives whose driver is ended meanwhile."""
    asyncio.get_running_loop().call_later(1, os.kill, driver, signal.SIGKILL)
    return await call


@pytest.mark.whole
@pytest.mark.parametrize("flood", sampled(FLOODS))
async def test_page_flood_grows_no_driver_and_stops_no_neighbour(two: tuple[Slot, Slot], flood: str) -> None:
    async with Toolbox(two[0], ["browser"]) as hostile, Toolbox(two[1], ["browser"]) as neighbour:
        surf, calm = Surfer(hostile), Surfer(neighbour)
        await calm("navigate", url=PAGE)
        await surf("navigate", url="data:text/html,<title>Hostile</title><body>")
        (driver,) = drivers()
        before = resident(driver), resident(os.getpid())
        await surf.call("console", expression=f"{FLOODS[flood]};1")
        until = anyio.current_time() + 10
        while anyio.current_time() < until:
            with anyio.fail_after(20):
                assert "here" in await calm.look()
            await anyio.sleep(0.2)
        grown = resident(driver) - before[0], resident(os.getpid()) - before[1]
        assert max(grown) < 150 * MIB, [size // MIB for size in grown]
        assert drivers() == [driver]
        if flood == "console":
            first = (await hostile.call("browser_console", {})).data
            await anyio.sleep(2)
            later = (await hostile.call("browser_console", {})).data
            for logged in first, later:
                assert isinstance(logged["total_messages"], int)
                assert logged["total_messages"] > 1000
            assert first["console_messages"] != later["console_messages"]


async def test_newest_messages_are_shown_when_a_flood_is_over(two: tuple[Slot, Slot]) -> None:
    async with Toolbox(two[0], ["browser"]) as toolbox:
        surf = Surfer(toolbox)
        await surf("navigate", url=PAGE)
        await surf("console", expression="for (let i = 0; i < 30000; i++) console.log('line ' + i); 1")
        with anyio.fail_after(60):
            while True:
                told = await surf("console")
                if told["console_messages"][-1:] == [{"type": "log", "text": "line 29999", "source": "console"}]:
                    break
                await anyio.sleep(0.5)
        assert told["total_messages"] == 30_000
        assert [message["text"] for message in told["console_messages"]][-300:] == [
            f"line {number}" for number in range(29_700, 30_000)
        ]


@pytest.mark.parametrize("forged", sampled(FORGED))
async def test_forged_message_ends_one_browser_alone(two: tuple[Slot, Slot], forged: str) -> None:
    async with Toolbox(two[0], ["browser"]) as hostile, Toolbox(two[1], ["browser"]) as neighbour:
        surf, calm = Surfer(hostile), Surfer(neighbour)
        await calm("navigate", url=PAGE)
        await surf("navigate", url=PAGE)
        (driver,) = drivers()
        written = await two[0].run(["python3", "-c", WRITE, FORGED[forged]])
        assert written.ok, written.stderr
        with anyio.fail_after(60):
            while "warning" not in (told := await surf("navigate", url=PAGE)):
                pass
        assert "because it sent" in told["warning"]
        assert "here" in await calm.look()
        assert drivers() == [driver]


@pytest.mark.parametrize("nonsense", sampled(NONSENSE))
async def test_well_formed_nonsense_ends_no_driver(two: tuple[Slot, Slot], nonsense: str) -> None:
    async with Toolbox(two[0], ["browser"]) as hostile, Toolbox(two[1], ["browser"]) as neighbour:
        surf, calm = Surfer(hostile), Surfer(neighbour)
        await calm("navigate", url=PAGE)
        await surf("navigate", url=PAGE)
        (driver,) = drivers()
        written = await two[0].run(["python3", "-c", WRITE, NONSENSE[nonsense]])
        assert written.ok, written.stderr
        await surf.call("snapshot")
        assert "here" in await calm.look()
        assert drivers() == [driver]


@pytest.mark.whole
async def test_lost_driver_is_infra_and_what_is_safe_is_done_again(two: tuple[Slot, Slot]) -> None:
    async with Toolbox(two[0], ["browser"], tools=["browser_close"]) as one, Toolbox(two[1], ["browser"]) as other:
        surf, idle = Surfer(one), Surfer(other)
        await surf("navigate", url=PAGE)
        await idle("navigate", url=PAGE)
        (driver,) = drivers()
        with anyio.move_on_after(60), pytest.raises(OutcomeUnknown) as lost:
            await ended_during(driver, one.call("browser_console", {"expression": NEVER}))
        assert lost.value.cause == "infra"
        with pytest.raises(ExecError, match="tabs and cookies are gone") as told:
            await other.call("browser_snapshot", {})
        assert (told.value.cause, told.value.retryable) == ("infra", True)
        for surfer in (surf, idle):
            assert "warning" not in await surfer("navigate", url=PAGE)
        # A browser in which nothing was done yet is replaced, and the model sees nothing of it.
        await surf("close")
        (driver,) = drivers()
        opened = await ended_during(driver, surf("navigate", url=BUSY))
        assert "ok" in opened["snapshot"]
        assert driver not in drivers()


async def test_eight_slots_share_a_driver(anyio_backend: str) -> None:
    require_engine("chromium")
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(SandboxPool("local", network=False, slots_per_sandbox=9))
        toolboxes: list[Any] = []
        for number in range(9):
            slot = await stack.enter_async_context(pool.slot())
            toolbox = await stack.enter_async_context(Toolbox(slot, ["browser"], tools=["browser_close"]))
            toolboxes.append(toolbox)
            assert (await toolbox.call("browser_navigate", {"url": PAGE})).ok
            assert len(drivers()) == 1 + number // 8
        await toolboxes[8].call("browser_close", {})
        await anyio.sleep(LINGER_S + 3)
        assert len(drivers()) == 1
        assert (await toolboxes[0].call("browser_snapshot", {})).ok


async def test_webrtc_sends_no_datagrams_to_private_addresses(anyio_backend: str) -> None:
    require_engine("chromium")
    own = socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((own, 0))
        server.setblocking(False)
        async with (
            SandboxPool("local", network=True) as pool,
            pool.slot() as slot,
            Toolbox(slot, ["browser"]) as toolbox,
        ):
            surf = Surfer(toolbox)
            await surf("navigate", url="about:blank")
            await surf.value(CALL % f"{own}:{server.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            server.recv(100)
