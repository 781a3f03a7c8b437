"""The DevTools pipe between a browser in a slot and Playwright's client on this host.

The browser speaks the DevTools protocol on a pipe (`--remote-debugging-pipe`: JSON texts, each ended by a NUL byte),
which is the stdin and stdout of its process. No port is opened, here or in the slot. Instead of a browser, the client
starts a small program that passes its ends of such a pipe to this process. This process forwards the messages of both
sides and checks the browser's messages.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketListener, TaskGroup, UNIXSocketStream

from hermes_exec.aio.streams import FdStream
from hermes_exec.errors import ExecError
from hermes_exec.tools.browser.message_guard import END, BadMessage, MessageGuard

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from hermes_exec.slot.process import Process

logger = logging.getLogger(__name__)
HANDOVER_PROGRAM = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as to:
    to.connect(sys.argv[1])
    socket.send_fds(to, [b"."], [3, 4])
    os.close(3)
    os.close(4)
    to.recv(1)
"""
"""The program that the client starts. A browser reads descriptor 3 and writes 4. It ends when the pipe is closed."""
CLOSED_ERRORS = (OSError, ExecError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
PIECE_BYTES = 1 << 15
"""The size at which a long message is forwarded before its end has arrived."""
MAX_DIRECTORY_CHARS = 60
"""The maximum length of the temporary directory. The path of a socket has at most 107 bytes, on macOS 103."""


class DevToolsPipe:
    """The connection between the client and the browser of a slot.

    `ended` is set when one side has closed, or when the browser sent a message that the client must not read.
    """

    def __init__(self, process: Process) -> None:
        self.ended = anyio.Event()
        self.fault: str | None = None
        """A description of the message that the client must not read, as part of a sentence."""
        self._process = process
        self.guard = MessageGuard(self._schedule_release)
        self._release_due, self._release_delay_s = anyio.Event(), 0.0

    async def connect(self, playwright: Playwright, tasks: TaskGroup, timeout_s: float) -> Browser:
        """Return the client's connection to the browser. The pipe is served in `tasks` until they are cancelled.

        Raises Playwright's errors.
        """
        default = tempfile.gettempdir()
        parent = default if len(default) <= MAX_DIRECTORY_CHARS else "/tmp"
        with tempfile.TemporaryDirectory(prefix="hermes-devtools-", dir=parent) as directory:
            path = f"{directory}/socket"
            async with await anyio.create_unix_listener(path) as listener:
                tasks.start_soon(self._carry, listener)
                return await playwright.chromium.launch(
                    executable_path=sys.executable,
                    ignore_default_args=True,
                    args=["-I", "-S", "-c", HANDOVER_PROGRAM, path],
                    timeout=timeout_s * 1000,
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                )

    async def _carry(self, listener: SocketListener) -> None:
        try:
            holder = await listener.accept()
            assert isinstance(holder, UNIXSocketStream)
            _, (commands, events) = await holder.receive_fds(1, 2)
        except CLOSED_ERRORS as error:
            logger.debug("no DevTools pipe was handed over: %r", error)
            return
        async with holder, FdStream(commands, events) as client:
            await self.serve(client)

    async def serve(self, client: FdStream) -> None:
        """Forward the messages of both sides until one of them closes; `client` is the client's end of the pipe."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry_to_browser, client, tasks.cancel_scope)
            tasks.start_soon(self._carry_to_client, client, tasks.cancel_scope)
            tasks.start_soon(self._release_queued, client, tasks.cancel_scope)

    async def _carry_to_browser(self, client: FdStream, scope: anyio.CancelScope) -> None:
        assert self._process.stdin is not None
        stdin = self._process.stdin
        stdin.hold()
        commands, wake, closed, sending = bytearray(), anyio.Event(), False, False

        def take(data: bytes) -> None:
            # Not the obvious code: see docs/why-not-obvious.md ("Data without waking a task"). The client writes a
            # message and its end separately; they are sent together.
            self.guard.note_commands(data)
            commands.extend(data)
            if not data.endswith(END) and len(commands) < PIECE_BYTES:
                return
            if not sending and stdin.send_nowait(bytes(commands)):
                commands.clear()
            else:
                wake.set()

        def on_end(error: Exception) -> None:
            nonlocal closed
            logger.debug("the client's side of a DevTools pipe ended: %r", error)
            closed = True
            wake.set()

        client.deliver(take, on_end)
        try:
            while not closed:
                await wake.wait()
                wake = anyio.Event()
                data, sending = bytes(commands), True
                commands.clear()
                await stdin.send(data)
                sending = False
        except CLOSED_ERRORS as error:
            logger.debug("a browser's input ended: %r", error)
        scope.cancel()

    async def _carry_to_client(self, client: FdStream, scope: anyio.CancelScope) -> None:
        output = self._process.stdout
        output.delimiter = END

        def take(piece: bytes) -> bool:
            if admitted := self.guard.admit(piece):
                client.send_nowait(admitted)
            return not client.pending_bytes and not self.guard.pause_s

        try:
            async for piece in output:
                if take(piece):
                    await output.deliver(take)
                await client.drain()
                await anyio.sleep(self.guard.pause_s)
        except BadMessage as error:
            self.fault = str(error)
        except CLOSED_ERRORS as error:
            logger.debug("the browser's side of a DevTools pipe ended: %r", error)
        finally:
            self.ended.set()
        scope.cancel()

    def _schedule_release(self, delay_s: float) -> None:
        self._release_delay_s = delay_s
        self._release_due.set()

    async def _release_queued(self, client: FdStream, scope: anyio.CancelScope) -> None:
        """Send queued optional events when the rate limit allows, and the client has read what came before."""
        try:
            while True:
                await self._release_due.wait()
                self._release_due = anyio.Event()
                await anyio.sleep(self._release_delay_s)
                await client.drain()
                await client.send(self.guard.release())
        except BadMessage as error:
            self.fault = str(error)
        except CLOSED_ERRORS as error:
            logger.debug("the client's side of a DevTools pipe ended: %r", error)
        scope.cancel()
