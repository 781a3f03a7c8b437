"""Connections into and out of a slot over the channel: to a TCP port in the slot, from a local listener, and from a
socket or port in the slot.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from os import PathLike
from types import TracebackType
from typing import NoReturn, Self

import anyio
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream

from hermes_exec.aio.tasks import DetachedTaskGroup, ShieldedTask
from hermes_exec.channel import Conversation, Event, RemoteError
from hermes_exec.checks import is_integer, validate_wait
from hermes_exec.errors import ConfigError, ExecError, ProtocolError
from hermes_exec.slot.command import validate_path
from hermes_exec.slot.receiver import Receiver
from hermes_exec.slot.scope import TRANSPORT_ERRORS, SlotScope

logger = logging.getLogger(__name__)
CONNECT_S = 30.0
LONGEST_HOST = 256
LOOPBACK = "127.0.0.1"
MAX_EXPOSED_CONNECTIONS = 256
"""Connections of one `ExposedPort` at once. More wait: a slot may open as many as it likes."""


def validate_port(port: int, *, least: int = 1) -> int:
    """Return a TCP port. Raises ConfigError if it is invalid."""
    if not is_integer(port) or not least <= port <= 65535:
        raise ConfigError(f"port must be an integer from {least} to 65535, not {port!r}")
    return port


def validate_host(host: object) -> str:
    """Return the name or address of a host. Raises ConfigError if it is invalid."""
    if not isinstance(host, str) or not host or "\0" in host or len(host) > LONGEST_HOST:
        raise ConfigError(f"host must be the name or address of a host, not {repr(host)[:LONGEST_HOST]}")
    return host


async def connect(scope: SlotScope, port: int, host: str, wait_s: float) -> Connection:
    """Connect to a port inside the slot, and wait up to `wait_s` seconds for a listener.

    Raises ConnectionRefusedError, TimeoutError and other OSErrors with the address.
    """
    params = {"host": validate_host(host), "port": validate_port(port), "wait_s": validate_wait(wait_s)}
    address, within_s = f"{host}:{port}", wait_s + CONNECT_S
    try:
        connected, _ = await _begin(scope, "net.connect", params, address, within_s)
    except ConnectionRefusedError as error:
        if not wait_s:
            raise
        why = f"nothing listened in the slot within {wait_s:g} s"
        raise ConnectionRefusedError(error.errno, why, address) from error
    if connected is None:
        raise TimeoutError(f"no connection to {address} in the slot within {within_s:g} s")
    return Connection(scope, connected)


async def wait_for_port(scope: SlotScope, port: int, timeout_s: float, host: str) -> None:
    """Wait until a connection inside the slot succeeds, and close it again. Raises TimeoutError."""
    try:
        connection = await connect(scope, port, host, validate_wait(timeout_s, "timeout_s"))
    except ConnectionRefusedError as error:
        raise TimeoutError(f"nothing listened on {host}:{port} in the slot within {timeout_s:g} s") from error
    await connection.aclose()


async def _begin(
    scope: SlotScope, method: str, params: Mapping[str, object], address: str, within_s: float = inf
) -> tuple[Conversation | None, Mapping[str, object]]:
    """Begin a conversation and return it with its first event. Return None if that takes longer than `within_s`."""
    scope.check()
    conversation: Conversation | None = None
    event: Mapping[str, object] = {}
    begun = False
    try:
        conversation = scope.channel.begin(method, {"slot": scope.slot, **params}, 1 << 18)
        with scope.cancel_scope(anyio.current_time() + within_s):
            item = await conversation.receive()
            if isinstance(item, Event):
                event = item.event
            if conversation.answered:
                await conversation.response()
            begun = True
    except (RemoteError, *TRANSPORT_ERRORS) as error:
        await scope.fail(error, address)
    finally:
        if conversation is not None and not begun:
            await scope.channel.finish(conversation)
    return (conversation if begun else None), event


class SlotListener:
    """A UNIX socket or a TCP port inside a slot; `accept` returns each connection on the driver's side.

    Use it as an async context manager. It stops with the slot; accepted connections stay open when it stops. `path` is
    the path of the UNIX socket ("" for a port), to which only the slot's own user can connect. `port` is the TCP port
    on 127.0.0.1 (0 for a path). Nothing in the slot holds it: it listens until it is left, and is free again then.
    """

    def __init__(self, scope: SlotScope, path: str | PathLike[str] | None, port: int | None) -> None:
        if (path is None) == (port is None):
            raise ConfigError("listen takes either a path or a port")
        self.path = "" if path is None else os.fspath(path)
        self.port = 0 if port is None else validate_port(port, least=0)
        self._scope, self._where = scope, None if path is None else validate_path(path, "path")
        self._requested_port = self.port
        self._conversation: Conversation | None = None

    @property
    def _address(self) -> str:
        return self.path or f"{LOOPBACK}:{self.port}"

    async def __aenter__(self) -> Self:
        params: dict[str, object] = {"path": self._where}
        if self._where is None:
            params = {"host": LOOPBACK, "port": self._requested_port}
        self._conversation, event = await _begin(self._scope, "net.listen", params, self._address)
        if self._where is None:
            try:
                self.port = _port_of(event)
            except ProtocolError as error:
                await self._scope.fail(error)
        return self

    async def accept(self) -> Connection:
        """Return the next connection, as a byte stream. Raises ConnectionAbortedError once the listener has stopped."""
        if self._conversation is None:
            raise ConnectionAbortedError(f"{self._address} is not listening: enter it first")
        accepted, _ = await _begin(self._scope, "net.accept", {"listener": self._conversation.id}, self._address)
        assert accepted is not None  # there is no deadline
        return Connection(self._scope, accepted)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None and self._scope.closed is None:
            with anyio.CancelScope(shield=True), suppress(ExecError, OSError):
                await self._scope.channel.finish(conversation)
                if self._where is not None:
                    params = {"path": self._where, "recursive": False, "missing_ok": True}
                    await self._scope.call("file.remove", params)


def _port_of(event: Mapping[str, object]) -> int:
    """Return the port in the EVENT `listening` of a TCP port. Raises ProtocolError."""
    address = event.get("address")
    port = address.removeprefix(f"{LOOPBACK}:") if isinstance(address, str) else ""
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ProtocolError(f"a listener in the slot has the address {address!r:.100}")
    return int(port)


class Connection(Receiver, ByteStream):
    """A TCP connection to a port inside a slot, as an anyio byte stream. It ends with the slot."""

    _conversation: Conversation

    def __init__(self, scope: SlotScope, conversation: Conversation) -> None:
        super().__init__(scope, conversation)
        self._sent_eof = False

    async def _refuse(self, error: RemoteError) -> NoReturn:
        raise anyio.BrokenResourceError from await self._scope.translate(error)

    async def send(self, item: bytes) -> None:
        """Send bytes, waiting while the other side does not read."""
        if self._closed or self._sent_eof:
            raise anyio.ClosedResourceError
        await self._scope.send(self._conversation, item)

    async def send_eof(self) -> None:
        """Close the sending side; receiving continues."""
        if not self._sent_eof and not self._closed:
            self._sent_eof = True
            await self._conversation.end()


class Forward:
    """A listener on this host's loopback that connects each client to a port inside the slot.

    Use it as an async context manager; it listens on `port`, and stops with the slot. If nothing listens inside the
    slot for `wait_s` seconds, the client is disconnected.
    """

    def __init__(self, scope: SlotScope, port: int, local_port: int, host: str, wait_s: float) -> None:
        self._scope, self._remote, self._host = scope, validate_port(port), validate_host(host)
        self._wait_s = validate_wait(wait_s)
        self._local = validate_port(local_port, least=0)
        self._background: DetachedTaskGroup | None = None
        self.port = local_port

    async def __aenter__(self) -> Self:
        self._scope.check()
        try:
            await ShieldedTask(self._listen).wait()
        except BaseException:
            if self._background is not None:
                await self.__aexit__(None, None, None)
            raise
        return self

    async def _listen(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._local)
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"127.0.0.1:{self._local}") from error
            self._background = background = DetachedTaskGroup()
            tasks = await background.start()
        self.port = int(listener.extra(SocketAttribute.local_port))
        tasks.start_soon(_serve, listener, self._carry)
        self._scope.on_close(self, background.cancel)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.forget(self)
        assert self._background is not None
        await self._background.end()

    async def _carry(self, client: SocketStream) -> None:
        async with client:
            try:
                inside = await connect(self._scope, self._remote, self._host, self._wait_s)
            except (OSError, ExecError) as error:
                logger.debug("forwarding to port %d: %s", self._remote, error)
                return
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_pump, client, inside)
                    tasks.start_soon(_pump, inside, client)
            finally:
                await inside.aclose()


class ExposedPort:
    """A TCP port on a slot's loopback that connects each client to a service in the driver's network.

    Use it as an async context manager; it listens on `port`, and stops with the slot. A client is disconnected if the
    service does not accept it within 30 s. 256 clients are connected at once; others wait.
    """

    def __init__(self, scope: SlotScope, host: str, port: int, slot_port: int) -> None:
        self._scope, self._host, self._remote = scope, validate_host(host), validate_port(port)
        self._listener = SlotListener(scope, None, slot_port)
        self._background: DetachedTaskGroup | None = None
        self._room = anyio.Semaphore(MAX_EXPOSED_CONNECTIONS)

    @property
    def port(self) -> int:
        """The port in the slot."""
        return self._listener.port

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        try:
            self._background = DetachedTaskGroup()
            tasks = await self._background.start()
            tasks.start_soon(self._accept)
            self._scope.on_close(self, self._background.cancel)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.forget(self)
        if self._background is not None:
            await self._background.end()
        await self._listener.__aexit__(None, None, None)

    async def _accept(self) -> None:
        assert self._background is not None
        while True:
            await self._room.acquire()
            try:
                client = await self._listener.accept()
            except (OSError, ExecError) as error:
                logger.debug("port %d of a slot accepts no more: %s", self.port, error)
                return
            self._background.tasks.start_soon(self._carry, client)

    async def _carry(self, client: Connection) -> None:
        try:
            async with client:
                with anyio.fail_after(CONNECT_S):
                    service = await anyio.connect_tcp(self._host, self._remote)
                async with service, anyio.create_task_group() as tasks:
                    tasks.start_soon(_pump, client, service)
                    tasks.start_soon(_pump, service, client)
        except (OSError, ExecError) as error:
            logger.debug("the service %s:%d: %s", self._host, self._remote, error)
        finally:
            self._room.release()


async def _serve(listener: Listener[SocketStream], carry: Callable[[SocketStream], Awaitable[None]]) -> None:
    async with listener:
        await listener.serve(carry)


async def _pump(source: ByteStream, sink: ByteStream) -> None:
    try:
        async for piece in source:
            await sink.send(piece)
        await sink.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, ExecError) as error:
        logger.debug("a forwarded connection broke: %r", error)
        for stream in (source, sink):
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await stream.aclose()
