"""Files and trees between this host and a slot: bytes on the channel, files in worker threads, in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, BinaryIO

import anyio
from anyio import from_thread, to_thread

from hermes_exec.channel import Conversation, Data
from hermes_exec.errors import OutputLimitExceeded, ProtocolError
from hermes_exec.results import TreeCopied
from hermes_exec.slot.answers import integer, texts
from hermes_exec.slot.scope import SlotScope
from hermes_exec.slot.transfer.pack import PERMISSIONS, PIECE_BYTES, open_regular, pack
from hermes_exec.slot.transfer.unpack import is_special, unpack, write

Remote = Mapping[str, Any]
"""The params that name a path of the slot: `path`, and `user` if there is one."""
STALL_S = 75.0
"""Seconds without progress until TimeoutError; the runner itself gives up after 60 s."""
WINDOW_BYTES = 4 << 20
BATCH_BYTES = 1 << 20
"""How much is written to a file at a time, if available: each write costs a thread switch."""
CLOCK_S = 1.0
"""Precision of `STALL_S`, in seconds: setting its timer costs as much as moving a piece."""


@contextlib.asynccontextmanager
async def open_transfer(scope: SlotScope, method: str, params: Mapping[str, Any], path: str) -> AsyncIterator[Transfer]:
    """Open a conversation that transfers data, and fails if nothing moves for too long."""
    with scope.cancel_scope(anyio.current_time() + STALL_S) as cancel_scope:
        async with scope.conversation(method, params, window=WINDOW_BYTES, path=path) as conversation:
            yield Transfer(conversation, cancel_scope)
    if cancel_scope.cancelled_caught:
        raise TimeoutError(f"{path}: nothing moved for {STALL_S:g} s")


class Transfer:
    """The data of a transfer. Each piece restarts the clock."""

    def __init__(self, conversation: Conversation, cancel_scope: anyio.CancelScope) -> None:
        self.conversation, self._cancel_scope = conversation, cancel_scope

    def restart_clock(self) -> None:
        """Restart the clock of `STALL_S`."""
        # Not the obvious code: see docs/why-not-obvious.md ("Timers that are not set").
        deadline = anyio.current_time() + STALL_S
        if deadline - self._cancel_scope.deadline > CLOCK_S:
            self._cancel_scope.deadline = deadline

    async def send(self, data: bytes) -> None:
        """Send a piece of any size."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            await self.conversation.send(view[start : start + PIECE_BYTES])
            self.restart_clock()

    async def finish(self) -> dict[str, Any]:
        """Signal the end of the data, and wait for the answer."""
        await self.conversation.end()
        return await self.conversation.response()

    async def receive(self) -> bytes:
        """Return the bytes that have arrived, else the next ones; b"" once the answer is there."""
        pieces: list[bytes] = []
        size = 0
        while size < BATCH_BYTES:
            item = self.conversation.receive_nowait() if pieces else await self.conversation.receive()
            if item is None:
                break
            if type(item) is Data and item.data:
                pieces.append(item.data)
                size += len(item.data)
        self.restart_clock()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def upload(scope: SlotScope, local: str, remote: Remote, path: str) -> TreeCopied:
    """Copy a local file or directory into the slot."""
    facts = await to_thread.run_sync(os.stat, local)
    if stat.S_ISDIR(facts.st_mode):
        return await _upload_tree(scope, local, remote, path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a directory", local)
    params = {**remote, "mode": facts.st_mode & PERMISSIONS, "parents": True, "append": False}
    async with open_transfer(scope, "file.write", params, path) as transfer, await _open(local) as file:
        while piece := await file.read(BATCH_BYTES):
            await transfer.send(piece)
        answer = await transfer.finish()
        return TreeCopied(1, integer(answer, "written"))
    raise AssertionError("unreachable")


async def _open(local: str) -> anyio.AsyncFile[bytes]:
    return anyio.wrap_file(await to_thread.run_sync(partial(open_regular, local, follow=True)))


async def _upload_tree(scope: SlotScope, local: str, remote: Remote, path: str) -> TreeCopied:
    async with open_transfer(scope, "file.put_tree", remote, path) as transfer:

        def send(piece: bytes) -> None:
            # A cancellation between two calls of from_thread.run is delivered to neither of them.
            from_thread.check_cancelled()
            from_thread.run(_send_unless_answered, transfer, piece)

        packed = await to_thread.run_sync(_pack, local, send)
        answer = await transfer.finish()
        refused = (*packed.refused, *texts(answer, "refused"))
        return TreeCopied(integer(answer, "files"), integer(answer, "bytes"), refused)
    raise AssertionError("unreachable")


class _EarlyAnswer(Exception):
    """Raised when the sandbox answers before everything was sent; its answer holds the reason."""


async def _send_unless_answered(transfer: Transfer, piece: bytes) -> None:
    if transfer.conversation.finished:
        raise _EarlyAnswer
    await transfer.send(piece)


def _pack(local: str, send: Callable[[bytes], None]) -> TreeCopied:
    try:
        return pack(local, send)
    except _EarlyAnswer:
        return TreeCopied(0, 0)


async def download(scope: SlotScope, remote: Remote, path: str, local: str, limit: int | None = None) -> TreeCopied:
    """Copy a file or directory of the slot to this host."""
    facts = await scope.call("file.stat", {**remote, "follow": True}, timeout_s=STALL_S, path=path)
    limit_check = _SizeLimit(limit, path)
    if facts.get("type") == "dir":
        return await _download_tree(scope, remote, path, local, limit_check)
    return await _download_file(scope, remote, path, local, integer(facts, "mode") & PERMISSIONS, limit_check)


async def save(scope: SlotScope, remote: Remote, path: str, archive: BinaryIO, limit: int | None) -> TreeCopied:
    """Write a file or directory of the slot into the archive, as the tar stream that arrives."""
    limit_check = _SizeLimit(limit, path)
    async with open_transfer(scope, "file.get_tree", remote, path) as transfer:
        while piece := limit_check.add(await transfer.receive()):
            await to_thread.run_sync(archive.write, piece)
        await to_thread.run_sync(archive.flush)
        answer = await transfer.conversation.response()
        return TreeCopied(integer(answer, "files"), integer(answer, "bytes"), texts(answer, "skipped"))
    raise AssertionError("unreachable")


async def restore(scope: SlotScope, archive: BinaryIO, remote: Remote, path: str) -> TreeCopied:
    """Unpack an archive of `save` in the slot, with every link unchanged."""
    async with open_transfer(scope, "file.put_tree", {**remote, "any_link": True}, path) as transfer:
        while not transfer.conversation.finished and (piece := await to_thread.run_sync(archive.read, BATCH_BYTES)):
            await transfer.send(piece)
        answer = await transfer.finish()
        return TreeCopied(integer(answer, "files"), integer(answer, "bytes"), texts(answer, "refused"))
    raise AssertionError("unreachable")


class _SizeLimit:
    """Counts received bytes, and refuses more than a limit."""

    def __init__(self, limit: int | None, path: str) -> None:
        self.size = 0
        self._limit, self._path = limit, path

    def add(self, piece: bytes) -> bytes:
        self.size += len(piece)
        if self._limit is not None and self.size > self._limit:
            raise OutputLimitExceeded(f"{self._path} holds more than {self._limit} bytes")
        return piece


async def _download_file(
    scope: SlotScope, remote: Remote, path: str, local: str, mode: int, limit_check: _SizeLimit
) -> TreeCopied:
    await to_thread.run_sync(_check_target, local)
    temporary = os.path.join(os.path.dirname(local) or ".", f".{secrets.token_hex(8)}.part")
    try:
        async with open_transfer(scope, "file.read", {**remote, "offset": 0}, path) as transfer:
            await to_thread.run_sync(partial(os.makedirs, os.path.dirname(temporary), exist_ok=True))
            async with await anyio.open_file(temporary, "xb") as file:
                while piece := limit_check.add(await transfer.receive()):
                    await to_thread.run_sync(write, file.wrapped, piece)
                await file.truncate(limit_check.size)
                answer = transfer.conversation.result()
        if integer(answer, "read") != limit_check.size:
            raise ProtocolError(f"the sandbox sent {limit_check.size} bytes of {path} and reported another number")
        await to_thread.run_sync(_put_in_place, temporary, local, mode)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return TreeCopied(1, limit_check.size)


def _check_target(local: str) -> None:
    if os.path.isdir(local):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), local)
    if is_special(local):
        raise FileExistsError(errno.EEXIST, "a device, FIFO or socket is not replaced", local)


def _put_in_place(temporary: str, local: str, mode: int) -> None:
    os.chmod(temporary, mode)
    _check_target(local)
    os.replace(temporary, local)


async def _download_tree(
    scope: SlotScope, remote: Remote, path: str, local: str, limit_check: _SizeLimit
) -> TreeCopied:
    async with open_transfer(scope, "file.get_tree", remote, path) as transfer:

        def receive() -> bytes:
            from_thread.check_cancelled()
            return limit_check.add(from_thread.run(transfer.receive))

        try:
            unpacked = await to_thread.run_sync(unpack, local, receive)
        except tarfile.TarError as error:
            if transfer.conversation.answered:
                transfer.conversation.result()  # raises if an error of the sandbox cut it off
            raise ProtocolError(f"the sandbox sent no tar stream for {path}: {error}") from error
        answer = await transfer.conversation.response()
        refused = (*unpacked.refused, *texts(answer, "skipped"))
        return TreeCopied(unpacked.files, unpacked.bytes, refused)
    raise AssertionError("unreachable")
