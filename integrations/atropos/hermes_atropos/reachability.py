"""Finds out whether slots can connect to the server of the trainer or of the model, which trust whoever connects."""

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

TRAINER, SAMPLER = "the server of the trainer", "the inference server"
_CONNECT_S = 5.0
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40


class ProtectedServer(NamedTuple):
    """A server that slots must not reach: what it is, and its address."""

    role: str
    url: str

    @property
    def port(self) -> int:
        """The port of the address."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


class ReachabilityCheck:
    """Tries, out of slots, to connect to servers: once for each profile of the pool and each sandbox of several slots
    (containers of one slot are alike), and again as long as one of the servers is not there.
    """

    def __init__(self, trainer: str | None, samplers: Iterable[str]) -> None:
        self._servers = [
            *([ProtectedServer(TRAINER, trainer)] if trainer else []),
            *(ProtectedServer(SAMPLER, url) for url in samplers),
        ]
        self._checked_scopes: set[tuple[str | None, str]] = set()
        self._lock = anyio.Lock()

    async def check(self, slot: Slot, profile: str | None) -> None:
        """Return where no program of the slot can connect to a server.

        Raises:
            ServerReachable: one can.
            ExecError: the slot is lost.
        """
        scope = (profile, "" if slot.isolation.level == "exclusive" else slot.sandbox)
        async with self._lock:
            if scope not in self._checked_scopes and all([await self._check(slot, server) for server in self._servers]):
                self._checked_scopes.add(scope)

    async def _check(self, slot: Slot, server: ProtectedServer) -> bool:
        """Return whether this says that it cannot be reached: not where the server is not there yet."""
        addresses = await anyio.to_thread.run_sync(_resolve, server)
        here = [address for address in addresses if is_local_address(address)]
        if here and await _shares_loopback(slot):
            raise _refusal(slot, server)
        if here:
            addresses = [*addresses, *await anyio.to_thread.run_sync(own_addresses)]
        # Elsewhere a loopback is another one. A public address of a model's provider asks for a key.
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
    # An address to listen at stands for all of this host.
    return [ipaddress.ip_address("127.0.0.1") if address.is_unspecified else address for address in addresses]


def is_local_address(address: _Address) -> bool:
    """Return whether it is an address of this host."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as probe:
            probe.bind((str(address), 0))
    except OSError:  # also where the kernel has no IPv6
        return False
    return True


def is_remote_public(address: _Address) -> bool:
    """Return whether it is a public address of another host. Neither a private one is, nor one that a provider or a VPN
    shares out (100.64.0.0/10).
    """
    return address.is_global and not is_local_address(address)


def own_addresses() -> list[_Address]:
    """Return the IPv4 addresses of this host's interfaces, bridges of container engines included."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack(f"{_IFREQ_BYTES}s", name.encode()))
            with suppress(OSError):
                fcntl.ioctl(probe, _SIOCGIFADDR, request)
                addresses.append(ipaddress.ip_address(request.tobytes()[20:24]))
    return addresses


async def _shares_loopback(slot: Slot) -> bool:
    """Whether a listener on this host's loopback can be reached from the slot."""
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
    """What a server sends first to a program in the slot; None where there is no connection."""
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
    """Return one of these addresses that the slot can connect to. All are tried at once: firewalls that drop packets
    take the whole time for each.
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
        "which trusts whoever connects: a model could write its own rewards. Turn the network of the slots off "
        "(--env.network false), take slots with a network of their own (such as --env.backend docker, with a server "
        f"that listens on 127.0.0.1 alone), or run {server.role} on a host of its own that slots cannot reach"
    )
