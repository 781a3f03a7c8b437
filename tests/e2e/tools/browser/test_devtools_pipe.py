"""The pipe between a browser and Playwright's client, with a program in a slot as the browser and a slow client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from hermes_exec import SandboxPool
from hermes_exec.aio.streams import FdStream
from hermes_exec.tools import Toolbox
from hermes_exec.tools.browser.devtools_pipe import DevToolsPipe
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import Surfer

EVENTS = r"""
from sys import stdin, stdout
def send(method, text):
    stdout.write('{"method":"%s","params":{"text":"%s"}}' % (method, text) + chr(0))
"""
NEEDED = f"{EVENTS}\nsend('Page.lifecycleEvent', 'x' * 3_000_000)\nstdout.flush()\nstdin.read()"
OPTIONAL = (
    f"{EVENTS}\nsend('Page.lifecycleEvent', 'first')\nstdout.flush()\nstdin.read(1)\n"
    "for number in range(1000): send('Runtime.consoleAPICalled', number)\n"
    "for number in range(10): send('Runtime.consoleAPICalled', 'x' * 20_000)\n"
    "stdout.flush()\nstdin.read()"
)
"""Ten events above the burst. They pass together a little later, and are longer than a pipe of the system."""


@asynccontextmanager
async def served(program: str) -> AsyncIterator[FdStream]:
    """The client's end of a pipe to a program in a slot."""
    async with SandboxPool("local", network=False) as pool, pool.slot() as slot:
        pipe = DevToolsPipe(await slot.spawn(["python3", "-c", program], stdin=True))
        (commands, to_browser), (events, from_browser) = os.pipe(), os.pipe()
        async with (
            FdStream(events, to_browser) as client,
            FdStream(commands, from_browser) as end,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(pipe.serve, end)
            yield client
            tasks.cancel_scope.cancel()


async def test_pipe_sends_the_rest_of_a_message_to_a_slow_client() -> None:
    async with served(NEEDED) as client:
        data = b""
        with anyio.fail_after(60):
            while not data.endswith(b"\0"):
                data += await client.receive(1 << 12)
        assert len(data) > 3_000_000


async def test_pipe_sends_the_rest_of_queued_events_to_a_slow_client() -> None:
    async with served(OPTIONAL) as client:
        data = b""
        with anyio.fail_after(60):
            data += await client.receive()
            await client.send(b" \0")
            while data.count(b"\0") < 1011:
                data += await client.receive()


@pytest.mark.timeout(180)
async def test_snapshots_of_a_large_page_do_not_stall() -> None:
    require_engine("chromium")
    page = "".join(f"<p>Paragraph {number} with <a href='/{number}'>a link</a></p>" for number in range(1200))
    async with (
        SandboxPool("local", network=False) as pool,
        pool.slot() as slot,
        Toolbox(slot, ["browser"], tools=["browser_close"]) as toolbox,
    ):
        await slot.files.write_text("page.html", f"<title>Links</title>{page}")
        surf = Surfer(toolbox)
        await surf("navigate", url=f"{slot.workdir}/page.html")
        with anyio.fail_after(60):
            for _ in range(10):
                assert (await surf("snapshot"))["element_count"] == 1200
                assert len(str(await surf.value("'x'.repeat(3_000_000)"))) > 1000
