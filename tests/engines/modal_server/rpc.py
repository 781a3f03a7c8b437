"""gRPC services made of Modal's protocol: what is not written here answers UNIMPLEMENTED; faults by switch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpclib import GRPCError, Status
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

Message = Any
"""Of protobuf: its classes are made at run time."""
Metadata = Mapping[str, Any]
WINDOW_BYTES = 16 << 20


@dataclass
class Failure:
    """What calls of one kind end with, so many times (None: until it is switched off)."""

    status: str
    message: str = ""
    times: int | None = 1


@dataclass
class Faults:
    """Switches, set from outside as JSON."""

    failures: dict[str, Failure] = field(default_factory=dict)
    """By the name of the call; ``*`` is for each."""
    slow_start_s: float = 0.0
    """How long a new sandbox takes before anything in it runs."""
    slow_create_s: float = 0.0
    """How long the answer to its creation takes; it is there at once."""
    token_s: float = 900.0
    """How long a token for the router is good."""
    gpus: tuple[str, ...] = ("T4",)
    """The kinds of which there is one free; others are never scheduled."""
    calls: dict[str, int] = field(default_factory=dict)
    """How often each call came."""
    unknown: set[str] = field(default_factory=set)
    """Calls that this server does not know."""

    def set(self, values: Mapping[str, Any]) -> None:
        """Take over what is given; `failures` wholly."""
        for name, value in values.items():
            if name == "failures":
                self.failures = {call: Failure(**failure) for call, failure in value.items()}
            elif name in {"slow_start_s", "slow_create_s", "token_s"}:
                setattr(self, name, float(value))
            elif name == "gpus":
                self.gpus = tuple(value)
            else:
                raise KeyError(name)

    def pass_or_fail(self, call: str) -> None:
        """Raise the failure that is set for a call."""
        self.calls[call] = self.calls.get(call, 0) + 1
        failure = self.failures.get(call) or self.failures.get("*")
        if failure is None:
            return
        if failure.times is not None:
            if failure.times <= 0:
                return
            failure.times -= 1
        raise GRPCError(Status[failure.status], failure.message)


def service(base: type, own: object, faults: Faults, allow: Callable[[str, Metadata], None]) -> Message:
    """A handler for all calls of a service. A method of `own` takes the request and the metadata, and returns the
    answer or is an iterator of answers. `allow` raises for callers that are not let in.
    """

    def unary(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(_: object, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            metadata: Metadata = stream.metadata or {}
            faults.pass_or_fail(name)
            allow(name, metadata)
            answer = method(request, metadata)
            if isinstance(answer, AsyncIterator):
                async for one in answer:
                    await stream.send_message(one)
            else:
                await stream.send_message(await answer)

        return handle

    def unknown(name: str) -> Callable[..., Any]:
        async def handle(_: object, stream: Stream[Any, Any]) -> None:
            faults.unknown.add(name)
            raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not part of this server")

        return handle

    names: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    methods = {name: unary(name, getattr(own, name)) if hasattr(own, name) else unknown(name) for name in names}
    return type(base.__name__, (base,), methods)()


class CuttableServer(Server):
    """A server whose connections can be broken as a network breaks them."""

    def __init__(self, *services: Any) -> None:
        settings = Configuration(http2_connection_window_size=WINDOW_BYTES, http2_stream_window_size=WINDOW_BYTES)
        super().__init__(services, config=settings)
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        self._protocols.append(made)
        return made

    def cut(self) -> int:
        """Break all connections; how many there were."""
        cut = 0
        for protocol in self._protocols:
            transport = getattr(getattr(protocol, "connection", None), "_transport", None)
            if isinstance(transport, asyncio.Transport) and not transport.is_closing():
                transport.abort()
                cut += 1
        self._protocols.clear()
        return cut
