"""The gate at which requests to one endpoint wait for their turn. Users of a key in an event loop share one gate."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import NamedTuple

import anyio
from anyio.lowlevel import RunVar

from hermes_agent.deadline import Deadline, current_deadline
from hermes_agent.errors import AccessRefused, EndpointAway, EndpointFailing, ModelError
from hermes_agent.models.failures import FailureKind, RequestFailure
from hermes_agent.models.pace import ActiveRequest, Pace

_CHECK_S = 1.0
_REMIND_S = 600.0
ShouldMove = Callable[[], bool]
logger = logging.getLogger(__name__)


class EndpointStatus(NamedTuple):
    """The state of an endpoint, for all its users in this event loop.

    Attributes:
        in_flight: The number of requests that are being served.
        waiting: The number of requests that wait for their turn.
        rate: The limit of requests per second. None: the endpoint has refused no request because it came too soon.
        away_s: How many seconds the endpoint has completed no request. None: it completes requests.
        reason: The last failure of an endpoint that is away.
        parts: The URL and the state of each endpoint, if there are several (`ReplicatedModel`).
    """

    in_flight: int = 0
    waiting: int = 0
    rate: float | None = None
    away_s: float | None = None
    reason: str = ""
    parts: tuple[tuple[str, EndpointStatus], ...] = ()


class Gate:
    """Lets requests start in the order of their arrival, when the pace allows it. `name` is for the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pace = Pace(time.monotonic, Random())
        self._turn = anyio.Lock(fast_acquire=True)
        self._changed = anyio.Event()
        self._waiting = 0
        self._refusals = 0
        self._refusal: ModelError | None = None
        self._warned_at: float | None = None
        self._deadlines: set[Deadline] = set()
        self._movable: dict[anyio.CancelScope, ShouldMove] = {}
        """The waits of requests that may move to another endpoint."""
        self.users: set[int] = set()
        """The endpoints that use it, by `id`."""

    @property
    def status(self) -> EndpointStatus:
        """The current state of the endpoint."""
        pace = self._pace
        return EndpointStatus(pace.in_flight, self._waiting, pace.rate, pace.away_s(), pace.reason)

    @property
    def successes(self) -> int:
        """The number of requests that the endpoint has completed."""
        return self._pace.successes

    @asynccontextmanager
    async def request(
        self, wait_outage_s: float, request: object, should_move: ShouldMove | None = None
    ) -> AsyncGenerator[None]:
        """Wait until a request may be sent, and learn the state of the endpoint from the outcome of the block.

        The block sends the request. `request` is the same object in all its tries. A request that arrives when the
        endpoint has been away for `wait_outage_s` seconds already is sent at once. A request that waits ends when
        `should_move` returns True, which is checked when the state of the endpoint changes.

        Raises:
            ModelError: If the endpoint has been away for `wait_outage_s` seconds while this request waited, or if the
                request should move to another endpoint.
            AccessRefused: If the key of another request was refused while this request waited.
        """
        start = await self._enter(wait_outage_s, should_move)
        try:
            yield
        except RequestFailure as failure:
            self._record_failure(start, failure, request)
            raise
        except BaseException:
            self._pace.record_drop(start)
            raise
        else:
            self._pace.record_success(start)
        finally:
            self._warn_of_outage()
            self._update_deadlines()
            self.move_waiting()
            self._changed.set()

    def move_waiting(self) -> None:
        """End the waits of requests that should move to another endpoint."""
        if self._movable and self._pace.away_since is not None:
            for scope, should_move in self._movable.items():
                if should_move():
                    scope.cancel()

    @contextmanager
    def holding_deadline(self) -> Iterator[None]:
        """Hold the deadline of the current episode whenever the endpoint is away within the block."""
        deadline = current_deadline()
        if deadline is None:
            yield
            return
        self._deadlines.add(deadline)
        self._update_deadlines()
        try:
            yield
        finally:
            self._deadlines.discard(deadline)
            deadline.resume()

    def has_been_away(self, wait_outage_s: float) -> bool:
        """Return whether the endpoint has completed no request for `wait_outage_s` seconds."""
        away_s = self._pace.away_s()
        return away_s is not None and away_s >= wait_outage_s

    def outage(self, failure: RequestFailure | None = None) -> EndpointAway:
        """Return the error for a request that waited without success.

        `failure` is the last failure of the request itself, if any.
        """
        away_s, reason = self._pace.away_s() or 0, self._pace.reason
        kind = EndpointFailing if failure is not None and failure.kind is FailureKind.BROKEN else EndpointAway
        text = f"{self._name} completed no request for {away_s:.0f} s, the last time: {reason}"
        return kind(text, status=None if failure is None else failure.error.status)

    async def _enter(self, wait_outage_s: float, should_move: ShouldMove | None) -> ActiveRequest:
        if should_move is None:
            return await self._wait_for_start(wait_outage_s)
        with anyio.CancelScope() as scope:
            self._movable[scope] = should_move
            try:
                return await self._wait_for_start(wait_outage_s)
            finally:
                del self._movable[scope]
        raise self.outage()

    async def _wait_for_start(self, wait_outage_s: float) -> ActiveRequest:
        if self.has_been_away(wait_outage_s):
            return self._pace.start()
        refusals = self._refusals
        self._waiting += 1
        try:
            await self._wait_in_line(wait_outage_s)
            try:
                while (wait_s := self._wait_s(refusals, wait_outage_s)) > 0:
                    self._changed = anyio.Event()
                    with anyio.move_on_after(wait_s):
                        await self._changed.wait()
                return self._pace.start()
            finally:
                self._turn.release()
        finally:
            self._waiting -= 1

    async def _wait_in_line(self, wait_outage_s: float) -> None:
        """Wait in the line. A long outage ends the wait of all in the line, not only of the first, which may wait for a
        probe.
        """
        while True:
            if self.has_been_away(wait_outage_s):
                raise self.outage()
            left_s = wait_outage_s - (self._pace.away_s() or 0.0)
            with anyio.move_on_after(max(_CHECK_S, left_s)):
                await self._turn.acquire()
                return

    def _wait_s(self, refusals: int, wait_outage_s: float) -> float:
        """Return how long the first in the line has to wait before it checks again."""
        if self._refusal is not None and self._refusals != refusals:
            raise AccessRefused(str(self._refusal), status=self._refusal.status)
        away_s = self._pace.away_s()
        if away_s is None:
            return self._pace.wait_s()
        if away_s < wait_outage_s:
            return min(self._pace.wait_s(), wait_outage_s - away_s)
        raise self.outage()

    def _record_failure(self, start: ActiveRequest, failure: RequestFailure, request: object) -> None:
        pace = self._pace
        match failure.kind:
            case FailureKind.THROTTLED:
                pace.record_throttling(start, failure.reason, failure.retry_after_s)
            case FailureKind.AWAY:
                pace.record_outage(start, failure.reason)
            case FailureKind.BROKEN:
                pace.record_failure(start, failure.reason, request)
            case FailureKind.REFUSED | FailureKind.FINAL:
                pace.record_success(start)
        if failure.kind is FailureKind.REFUSED:
            self._refusals += 1
            self._refusal = failure.error

    def _update_deadlines(self) -> None:
        away = self._pace.away_since is not None
        for deadline in self._deadlines:
            if away:
                deadline.hold()
            else:
                deadline.resume()

    def _warn_of_outage(self) -> None:
        """Log an outage after the first failed probe, then every ten minutes, and its end."""
        away_s = self._pace.away_s()
        if away_s is None:
            if self._warned_at is not None:
                self._warned_at = None
                logger.warning("%s completes requests again", self._name)
        elif self._pace.failed_probes and (self._warned_at is None or away_s >= self._warned_at + _REMIND_S):
            since = "" if self._warned_at is None else f" for {away_s:.0f} s"
            self._warned_at = away_s
            logger.warning("%s completes no request%s: %s; waiting for it", self._name, since, self._pace.reason)


_GATES: RunVar[dict[tuple[str | None, str], Gate]] = RunVar("gates of endpoints")


def gate_of(base_url: str | None, api_key: str, *, name: str, user: int) -> Gate:
    """Return the gate of all users of this URL with this key, in this event loop."""
    gates = _gates()
    if (gate := gates.get((base_url, api_key))) is None:
        gate = gates[base_url, api_key] = Gate(name)
    gate.users.add(user)
    return gate


def status_of(base_url: str | None, api_key: str) -> EndpointStatus:
    """Return the state of the endpoint, for all its users in this event loop."""
    gate = find_gate(base_url, api_key)
    return EndpointStatus() if gate is None else gate.status


def find_gate(base_url: str | None, api_key: str) -> Gate | None:
    """Return the gate of this URL with this key, or None if no request was sent there in this event loop."""
    return _gates().get((base_url, api_key))


def forget(base_url: str | None, api_key: str, *, user: int) -> None:
    """Remove a user from its gate. The gate and its state are dropped with the last user."""
    gate = find_gate(base_url, api_key)
    if gate is not None:
        gate.users.discard(user)
        if not gate.users:
            del _gates()[base_url, api_key]


def _gates() -> dict[tuple[str | None, str], Gate]:
    try:
        return _GATES.get()
    except LookupError:
        _GATES.set({})
        return _GATES.get()
