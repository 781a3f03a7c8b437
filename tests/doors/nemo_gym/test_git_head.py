"""Methods that NeMo Gym calls since 0.6 (git head 07d6b0d07), called here as it calls them, because 0.4.0 does not."""

from __future__ import annotations

import asyncio
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from nemo_gym.sandbox import AsyncSandbox, SandboxSpec

from hermes_nemo_gym import HermesProvider
from hermes_nemo_gym.terminal import Terminal
from tests.doors.nemo_gym.conftest import Block

pytestmark = pytest.mark.whole


async def create_pty(sandbox: AsyncSandbox, command: str | None = None, **more: Any) -> Terminal:
    provider = sandbox._provider
    assert isinstance(provider, HermesProvider)
    spec = {"command": command, "cwd": None, "env": None, "rows": 24, "cols": 80, "user": None, "pty": True, **more}
    return await provider.create_pty(sandbox._require_handle(), SimpleNamespace(**spec))


async def read_all(terminal: Terminal) -> bytes:
    return b"".join([piece async for piece in terminal])


async def test_git_head_endpoint_leads_to_a_service(block: Block) -> None:
    server = (
        "import http.server as h\n"
        "class Get(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'from the slot')\n"
        "h.HTTPServer(('127.0.0.1', 8123), Get).serve_forever()"
    )
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        provider = sandbox._provider
        assert isinstance(provider, HermesProvider)
        if (await sandbox.exec("command -v python3")).return_code:
            pytest.skip("the image has no Python")
        await sandbox.exec(f'python3 -c "{server}" >/dev/null 2>&1 &')
        endpoint = await provider.endpoint(sandbox._require_handle(), 8123)
        assert (await provider.endpoint(sandbox._require_handle(), 8123)).endpoint == endpoint.endpoint
        wait = (
            "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))' 2>/dev/null; do :; done"
        )
        assert (await sandbox.exec(wait, timeout_s=20)).return_code == 0
        assert await asyncio.to_thread(lambda: urllib.request.urlopen(endpoint.endpoint).read()) == b"from the slot"
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(lambda: urllib.request.urlopen(endpoint.endpoint, timeout=5).read())


async def test_git_head_terminal_has_size_and_input(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec(env={"WHO": "me"})) as sandbox:
        await sandbox.start()
        async with await create_pty(sandbox, "tty; stty size; read x; echo $WHO got $x", rows=30, cols=90) as terminal:
            assert (terminal.mode, terminal.closed) == ("pty", False)
            await terminal.write(b"a line\n")
            output = await read_all(terminal)
            assert b"/dev/pts/" in output
            assert b"30 90" in output
            assert b"me got a line" in output
            assert await terminal.wait_exit() == 0
            assert await terminal.read_stderr() == b""
            assert terminal.closed


async def test_git_head_shell_keeps_state(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        shell = await create_pty(sandbox, cwd="/usr")
        await shell.write(b"X=1; cd /\n")
        await shell.write(b"echo $X-$PWD-end; exit 4\n")
        assert b"1-/-end" in await read_all(shell)
        assert await shell.wait_exit() == 4
        await shell.close()
        await shell.close()


async def test_git_head_pipes_are_two_streams(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        async with await create_pty(sandbox, "cat; echo err >&2", pty=False, env={"A": "1"}) as terminal:
            assert terminal.mode == "pipe"
            with pytest.raises(TimeoutError):
                await terminal.read(timeout_s=0.05)
            await terminal.write(b"in")
            assert await terminal.read(timeout_s=20) == b"in"
            await terminal.send_signal("SIGTERM")
            assert await terminal.wait_exit(timeout_s=20) == 143
            with pytest.raises(ValueError, match="SIGNONE"):
                await terminal.send_signal("SIGNONE")
            with pytest.raises(RuntimeError):
                await terminal.send_signal("SIGTERM")
        with pytest.raises(RuntimeError):
            await terminal.write(b"more")


async def test_git_head_terminal_of_lost_sandbox_raises(block: Block) -> None:
    async with AsyncSandbox(block, SandboxSpec()) as sandbox:
        await sandbox.start()
        terminal = await create_pty(sandbox, "sleep 60")
        with pytest.raises(TimeoutError):
            await terminal.wait_exit(timeout_s=0.05)
    with pytest.raises(RuntimeError, match="slot"):
        await terminal.read()
    await terminal.close()
