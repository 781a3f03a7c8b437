"""Connections to servers, each with one request at a time and kept open for the next."""

from __future__ import annotations

import ssl
import time
from collections import deque
from typing import NamedTuple

import anyio
import httpcore2

from hermes_agent.models.http.environment import Proxies, trusted_certificates
from hermes_agent.models.http.sockets import network_backend

_KEEPALIVE_S, _CLOSE_S = 5.0, 1.0


class Server(NamedTuple):
    """A server that requests are sent to. `host` is as in DNS."""

    scheme: str
    host: str
    port: int


class _Idle(NamedTuple):
    connection: httpcore2.AsyncConnectionInterface
    since: float


class Connections:
    """The open connections of one client in one event loop. The one that was used last is used first.

    Not the obvious code: see docs/why-not-obvious.md ("Connections without a pool").
    """

    def __init__(self) -> None:
        self._proxies = Proxies()
        self._certificates: ssl.SSLContext | None = None
        self._factories: dict[Server, httpcore2.AsyncConnectionPool] = {}
        self._idle: dict[Server, deque[_Idle]] = {}
        self._open: set[httpcore2.AsyncConnectionInterface] = set()

    async def acquire(self, server: Server) -> httpcore2.AsyncConnectionInterface:
        """Return a connection to the server. It may be a new one, which connects at its first request.

        Raises:
            UnusableEnvironment: If the environment names an unusable proxy or certificate.
        """
        idle = self._idle.setdefault(server, deque())
        oldest = time.monotonic() - _KEEPALIVE_S
        while idle and idle[0].since < oldest:
            await self._close(idle.popleft().connection)
        while idle:
            connection = idle.pop().connection
            if not connection.has_expired():
                return connection
            await self._close(connection)
        connection = self._get_factory(server).create_connection(_origin(server))
        self._open.add(connection)
        return connection

    async def release(self, server: Server, connection: httpcore2.AsyncConnectionInterface) -> None:
        """Keep a connection for the next request, or close it if its last answer was not read to the end."""
        if connection in self._open and connection.is_available():
            self._idle.setdefault(server, deque()).append(_Idle(connection, time.monotonic()))
        else:
            await self._close(connection)

    async def aclose(self) -> None:
        """Close all connections. Requests on them fail."""
        self._idle.clear()
        for connection in list(self._open):
            await self._close(connection)

    async def _close(self, connection: httpcore2.AsyncConnectionInterface) -> None:
        self._open.discard(connection)
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await connection.aclose()

    def _get_factory(self, server: Server) -> httpcore2.AsyncConnectionPool:
        """Return the maker of connections to a server: httpcore2's pool, of which only that part is used."""
        factory = self._factories.get(server)
        if factory is None:
            proxy = self._proxies.find(*server)
            encrypted = server.scheme == "https" or (proxy is not None and proxy.url.scheme == b"https")
            if encrypted and self._certificates is None:
                self._certificates = trusted_certificates()
            if proxy is not None and proxy.url.scheme == b"https":
                proxy.ssl_context = self._certificates
            factory = self._factories[server] = httpcore2.AsyncConnectionPool(
                ssl_context=self._certificates, proxy=proxy, network_backend=network_backend()
            )
        return factory


def _origin(server: Server) -> httpcore2.Origin:
    return httpcore2.Origin(server.scheme.encode(), server.host.encode(), server.port)
