"""Checks whether slots can connect to the trainer's server or the inference server, which trust every client."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import secrets
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread

from hermes_atropos.errors import ServerReachable
from hermes_exec import ExecError, Slot

TRAINER, SAMPLER = "the trainer's server", "the inference server"
_CONNECT_S = 5.0
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40


class ProtectedServer(NamedTuple):
    """A server that slots must not reach: its role and its address."""

    role: str
    url: str

    @property
    def port(self) -> int:
        """The port of the address."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


class ReachabilityCheck:
    """Tries to connect to the servers from slots: once per profile of the pool and once per sandbox with several slots
    (containers with one slot are alike), and again as long as a server is not up yet.
    """

    def __init__(self, trainer: str | None, samplers: Iterable[str]) -> None:
        self._servers = [
            *([ProtectedServer(TRAINER, trainer)] if trainer else []),
            *(ProtectedServer(SAMPLER, url) for url in samplers),
        ]
        self._checked_scopes: set[tuple[str | None, str]] = set()
        self._lock = anyio.Lock()

    async def check(self, slot: Slot, profile: str | None) -> None:
        """Return if no program in the slot can connect to a server.

        Raises:
            ServerReachable: If a program in the slot can connect to a server.
            ExecError: If the slot is lost.
        """
        scope = (profile, "" if slot.isolation.level == "exclusive" else slot.sandbox)
        async with self._lock:
            if scope not in self._checked_scopes and all([await self._check(slot, server) for server in self._servers]):
                self._checked_scopes.add(scope)

    async def _check(self, slot: Slot, server: ProtectedServer) -> bool:
        """Return whether the result is final. It is not while the server does not accept connections yet."""
        addresses = await anyio.to_thread.run_sync(_resolve, server)
        here = [address for address in addresses if is_local_address(address)]
        if here and await _shares_loopback(slot):
            raise _refusal(slot, server)
        if here:
            addresses = [*addresses, *await anyio.to_thread.run_sync(own_addresses)]
        # Another host's loopback is not this one. A public address of a model provider requires a key.
        wanted = {a for a in addresses if not a.is_loopback and (server.role == TRAINER or not is_remote_public(a))}
        if addresses and not wanted:
            return True
        reached = await _find_reachable(slot, wanted, server.port)
        if reached is not None:
            raise _refusal(slot, server, f"{reached}:{server.port}")
        return any([await _accepts_connections(str(address), server.port) for address in addresses])


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _resolve(server: ProtectedServer) -> list[_Address]:
    host = urlsplit(server.url).hostname
    if not host:
        return []
    try:
        infos = socket.getaddrinfo(host, server.port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = {ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos}
    # 0.0.0.0 and :: stand for any address of this host.
    return [ipaddress.ip_address("127.0.0.1") if address.is_unspecified else address for address in addresses]


def is_local_address(address: _Address) -> bool:
    """Return whether this is an address of this host."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as probe:
            probe.bind((str(address), 0))
    except OSError:  # also raised if the kernel has no IPv6
        return False
    return True


def is_remote_public(address: _Address) -> bool:
    """Return whether this is a public address of another host. Private addresses and shared ones of providers and VPNs
    (100.64.0.0/10) are not public.
    """
    return address.is_global and not is_local_address(address)


def own_addresses() -> list[_Address]:
    """Return the IPv4 addresses of this host's interfaces, including bridges of container engines."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack(f"{_IFREQ_BYTES}s", name.encode()))
            with suppress(OSError):
                fcntl.ioctl(probe, _SIOCGIFADDR, request)
                addresses.append(ipaddress.ip_address(request.tobytes()[20:24]))
    return addresses


async def _shares_loopback(slot: Slot) -> bool:
    """Return whether the slot can reach a listener on this host's loopback."""
    token = secrets.token_bytes(16)

    async def greet(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError):
                await stream.send(token)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, greet)
        greeting = await _read_greeting(slot, "127.0.0.1", port, len(token))
        tasks.cancel_scope.cancel()
    return greeting == token


async def _read_greeting(slot: Slot, host: str, port: int, size: int) -> bytes | None:
    """Return the first bytes that a server sends to a program in the slot, or None if it cannot connect."""
    data = b""
    with anyio.move_on_after(_CONNECT_S):
        try:
            connection = await slot.connect(port, host)
        except OSError as error:
            if isinstance(error, ExecError):
                raise
            return None
        async with connection:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                while len(data) < size:
                    data += await connection.receive()
        return data
    return None


async def _find_reachable(slot: Slot, addresses: Iterable[_Address], port: int) -> str | None:
    """Return one of these addresses that the slot can connect to, or None. All are tried at the same time, because a
    firewall that drops packets uses up the full timeout for each.
    """
    reached: list[str] = []
    lost: list[ExecError] = []

    async def connect(host: str) -> None:
        try:
            if await _read_greeting(slot, host, port, 0) is not None:
                reached.append(host)
        except ExecError as error:
            lost.append(error)

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(connect, str(address))
    if lost:
        raise lost[0]
    return min(reached, default=None)


async def _accepts_connections(host: str, port: int) -> bool:
    with anyio.move_on_after(_CONNECT_S), suppress(OSError):
        async with await anyio.connect_tcp(host, port):
            return True
    return False


def _refusal(slot: Slot, server: ProtectedServer, at: str = "") -> ServerReachable:
    return ServerReachable(
        f"slots of the backend {slot.backend!r} can connect to {server.role} ({server.url}{at and f', at {at}'}), "
        "which trusts every client: a model could write its own rewards. Turn off the network of the slots "
        "(--env.network false), use slots with their own network (such as --env.backend docker, with a server that "
        f"listens on 127.0.0.1 only), or run {server.role} on a host that slots cannot reach"
    )
