"""Read-only access for other programs of the same user to the slots that are in use.

A pool listens on a Unix socket (mode 0600) in `hermes-exec.UID` in the temporary directory (mode 0700). Only root and
the pool's own user are answered. A request is a line of JSON, `{"do": …, "slot": id}`, and so is each answer. The
requests are `slots`, `processes`, and `view`, which sends the output of the slot's commands as it arrives.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_exec.aio.peers import has_peer_credentials, peer_credentials
from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.channel import Event, RemoteError
from hermes_exec.errors import ExecError, SlotClosed
from hermes_exec.pool.private_directory import make_pool_directory, pool_directory

if TYPE_CHECKING:
    from hermes_exec.pool.sandbox import PooledSlot
    from hermes_exec.slot.scope import SlotScope
    from hermes_exec.slot.slot import Slot

HeldSlots = Mapping[str, "PooledSlot"]
Send = Callable[[Mapping[str, object]], Awaitable[None]]
logger = logging.getLogger(__name__)
REQUEST_BYTES = 64 << 10
VIEW_WINDOW = 256 << 10
RESET_POLL_S = 0.05
FINAL_OUTPUT_S = 5.0
SUFFIX = ".pool"


async def offer_view(held: HeldSlots) -> None:
    """Serve observers until cancelled. If the socket cannot be created, there are no observers; the pool is not
    affected.
    """
    path, pid = pool_directory() / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}", os.getpid()
    try:
        listener = _listen(path)
    except OSError as error:
        logger.info("slots cannot be observed: %s: %s", path, error.strerror or error)
        return
    try:
        async with await SocketListener.from_socket(listener) as served:
            await served.serve(partial(_serve_observer, held))
    finally:
        if os.getpid() == pid:
            path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    make_pool_directory()
    for earlier in path.parent.glob(f"*{SUFFIX}"):
        listens(earlier)  # removes it if it is dead
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Renamed once it listens, so that a socket with that name that refuses connections is dead.
    aside = path.with_name(f".{path.name}")
    try:
        listening.setblocking(False)
        listening.bind(str(aside))
        aside.chmod(0o600)
        listening.listen(16)
        aside.rename(path)
    except OSError:
        listening.close()
        raise
    return listening


def listens(path: Path) -> bool:
    """Check whether a pool accepts connections there; remove a socket whose pool has died.

    The check does not block: a stuck process may have a full backlog.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return False
        except OSError:
            return False
    return True


async def _serve_observer(held: HeldSlots, stream: SocketStream) -> None:
    """Serve one observer; errors here never reach the pool."""
    async with stream:
        if not _may_observe(stream):
            return
        try:
            await _answer_all(held, stream)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.DelimiterNotFound, anyio.IncompleteRead):
            return
        except Exception:
            logger.exception("a request of an observer failed")


def _may_observe(stream: SocketStream) -> bool:
    """Check that the peer is this user or root. On systems that do not report peers, the directory excludes others."""
    if not has_peer_credentials():
        return True
    return peer_credentials(stream.extra(SocketAttribute.raw_socket))[1] in {0, os.geteuid()}


async def _answer_all(held: HeldSlots, stream: SocketStream) -> None:
    lines = BufferedByteReceiveStream(stream)

    async def send(answer: Mapping[str, object]) -> None:
        await stream.send(json.dumps(answer).encode() + b"\n")

    while True:
        try:
            request = json.loads(await lines.receive_until(b"\n", REQUEST_BYTES))
            if not isinstance(request, dict):
                raise TypeError("a request is an object")
            if request.get("do") == "view":
                await _show_until_gone(_find_held(held, request)[1], lines, send)
                return
            await send(await _answer(held, request))
        except (ExecError, OSError, ValueError, TypeError, RecursionError) as error:
            await send({"error": str(error), "kind": type(error).__name__})


async def _answer(held: HeldSlots, request: Mapping[str, Any]) -> dict[str, object]:
    match request.get("do"):
        case "slots":
            slots = [pooled.holder for pooled in held.values() if pooled.holder is not None]
            return {"slots": [_facts(slot) for slot in slots if not slot.closed]}
        case "processes":
            processes = await _find_held(held, request)[0].processes()
            names = ("pid", "argv", "started_at", "rss_bytes", "request_id", "state")
            return {"processes": [{name: getattr(each, name) for name in names} for each in processes]}
        case other:
            raise ValueError(f"unknown request {other!r}")


def _find_held(held: HeldSlots, request: Mapping[str, Any]) -> tuple[Slot, SlotScope]:
    pooled = held.get(str(request.get("slot")))
    if pooled is None or pooled.holder is None or pooled.holder.closed:
        raise SlotClosed("the slot is no longer in use")
    return pooled.holder, pooled.calls


def _facts(slot: Slot) -> dict[str, object]:
    facts = {name: getattr(slot, name) for name in ("id", "backend", "sandbox", "image", "workspace")}
    return {**facts, "isolation": slot.isolation.level, "pid": os.getpid()}


async def _show_until_gone(scope: SlotScope, lines: BufferedByteReceiveStream, send: Send) -> None:
    async with PlainTaskGroup() as tasks:

        async def until_gone() -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await lines.receive()
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_gone)
        await _show(scope, send)
        tasks.cancel_scope.cancel()


async def _show(scope: SlotScope, send: Send) -> None:
    """Send the output in the slot, across resets, until it is released."""
    while not scope.final:
        with anyio.CancelScope() as cancel_scope:
            scope.on_close(
                cancel_scope, lambda: setattr(cancel_scope, "deadline", anyio.current_time() + FINAL_OUTPUT_S)
            )
            try:
                await _show_scope(scope, send)
            except (RemoteError, ExecError) as error:
                if scope.closed is None:
                    raise ExecError(f"the slot cannot be reached: {error}") from error
            finally:
                scope.forget(cancel_scope)
        while scope.successor is None and not scope.final:  # noqa: ASYNC110 - a reset sets no event for observers
            await anyio.sleep(RESET_POLL_S)
        if scope.successor is not None:
            scope = scope.successor
        if not scope.final:
            await send({"event": "reset"})
    await send({"event": "released"})


async def _show_scope(scope: SlotScope, send: Send) -> None:
    """Send the output up to the next reset. The runner ends the view, so output printed right before it is included."""
    async with scope.channel.converse("slot.view", {"slot": scope.slot}, window=VIEW_WINDOW) as conversation:
        viewing = False
        while (item := await conversation.receive()) is not None:
            if scope.closed is not None and not viewing:
                return  # the slot may already have another holder
            viewing = True
            if isinstance(item, Event):
                await send(item.event)
        conversation.result()
