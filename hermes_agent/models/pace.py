"""A policy that decides when the next request to an endpoint may start. It neither waits nor has a clock of its own.

The number of requests in flight grows with success, and doubles after five seconds in which the endpoint refuses
nothing: answers may take minutes, but an endpoint with too many requests refuses at once. Once the endpoint has refused
a request because it came too soon, a rate limits the requests: it falls below the refused rate, comes back to it slowly
and then probes for more, as TCP CUBIC does with its window (RFC 9438), counted in requests instead of seconds. An
endpoint that completes nothing gets one request at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

FIRST_IN_FLIGHT, MAX_IN_FLIGHT = 16, 1000
"""The client has 1,000 connections at most."""
LONGEST_HOLD_S = 60.0
_SHORTEST_HOLD_S = 1.0
_GROWTH_S = 5.0
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.5, 15.0
# This many in a row are an outage. Failures must come from several requests, because one may always fail by itself.
_FAILURES_IN_A_ROW, _REFUSALS_IN_A_ROW, _FAILING_REQUESTS = 8, 3, 4
_REDUCED_SHARE = 0.85
_JITTER = 0.03
# Successes that lead back to the refused rate: a number, plus this many seconds of requests, at most the last number of
# seconds of requests. Fewer lead back to a mere guess.
_RECOVERY, _GUESS_RECOVERY = (60, 15.0, 45.0), (10, 5.0, 8.0)
_WINDOW_S = 1.0
_SLOWEST = 1 / LONGEST_HOLD_S


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request in flight. `paced`: it was sent as soon as the rate allowed it. `probe`: it tests whether the
    endpoint is back.
    """

    number: int
    at: float
    paced: bool
    probe: bool


@dataclass(slots=True)
class _RateSample:
    """The number of requests that an endpoint accepted: all of `first` to `last`, sent within `seconds`, except
    `refused`.

    Some refusals arrive only later, and are then added to `refused`.
    """

    first: int
    last: int
    seconds: float
    refused: int

    def has(self, start: ActiveRequest) -> bool:
        return self.first <= start.number <= self.last

    def rate(self) -> float:
        return max(1, self.last - self.first + 1 - self.refused) / max(_WINDOW_S, self.seconds)


class Pace:
    """Decides when a request may start. Callers report the end of each request once.

    Args:
        now: Returns the seconds of any clock that does not go back.
        random: The source of jitter.
    """

    def __init__(self, now: Callable[[], float], random: Random) -> None:
        self.in_flight = 0
        self.limit = float(FIRST_IN_FLIGHT)
        self.rate: float | None = None
        """Requests a second; None: no limit."""
        self.away_since: float | None = None
        """The time at which the endpoint went away; None while it completes requests."""
        self.reason = ""
        self.failed_probes = 0
        self.successes = 0
        self._now, self._random = now, random
        self._number = 0
        self._slow_start = True
        self._full_since: float | None = None
        """Since when the limit has held back requests."""
        self._failures = 0
        self._failing: set[object] = set()
        self._probe: ActiveRequest | None = None
        self._probe_at = 0.0
        self._next_at = self._held_until = self._last_at = 0.0
        self._hold_s = _SHORTEST_HOLD_S
        self._recent: deque[ActiveRequest] = deque()
        self._refused_at = -math.inf
        self._sample: _RateSample | None = None
        # Since the last refusal that was measured: the first request, the refused requests, the seconds with requests.
        self._first, self._refused, self._busy_s = 1, 0, 0.0
        # The rate that seems to be allowed, whether it is a mere guess, and the successes on the way to it.
        self._allowed, self._guessed, self._grown = 0.0, True, 0

    def wait_s(self) -> float:
        """Return the seconds until a request may start: 0 for now, infinity if another request has to end first."""
        now = self._now()
        if self.away_since is not None:
            return math.inf if self._probe else max(0.0, self._probe_at - now)
        if self.in_flight < self.limit / 2:
            self._full_since = None
        if self.in_flight >= int(self.limit) and (wait_s := self._growth_wait_s(now)) > 0:
            return wait_s
        return max(0.0, self._free_at() - now)

    def _growth_wait_s(self, now: float) -> float:
        """Return the seconds until time alone lets the limit grow, and let it grow if it is time."""
        if not self._slow_start or self.limit >= MAX_IN_FLIGHT:
            return math.inf
        if self._full_since is None:
            self._full_since = now
        wait_s = self._full_since + _GROWTH_S - now
        if wait_s <= 0:
            self.limit, self._full_since = min(MAX_IN_FLIGHT, 2 * self.limit), None
        return wait_s

    def start(self) -> ActiveRequest:
        """Record that a request starts now, and return it."""
        now = self._now()
        self._number += 1
        self.in_flight += 1
        start = ActiveRequest(self._number, now, paced=False, probe=self.away_since is not None)
        if start.probe and self._probe is None:
            self._probe = start
        if self.rate is None:
            self._recent.append(start)
            while self._recent[0].at < now - _WINDOW_S - LONGEST_HOLD_S or len(self._recent) > 2 * MAX_IN_FLIGHT:
                self._recent.popleft()
        else:
            interval = 1 / self.rate
            # With little to send, the rate is not the bound, so the outcome reveals nothing about it.
            start.paced = now - self._free_at() < interval
            self._busy_s += now - self._last_at if start.paced else interval
            self._next_at = now + interval * self._random.uniform(1 - _JITTER, 1 + _JITTER)
        self._last_at = now
        return start

    def record_success(self, start: ActiveRequest) -> None:
        """Record that the endpoint completed the request, or refused it for good."""
        self._finish(start)
        self.successes += 1
        self.away_since, self.reason, self._failures, self.failed_probes = None, "", 0, 0
        self._failing.clear()
        self._hold_s = _SHORTEST_HOLD_S
        if self.in_flight + 1 >= int(self.limit):
            self.limit = min(MAX_IN_FLIGHT, self.limit + (1 if self._slow_start else 1 / self.limit))
        if start.paced and start.at > self._refused_at:
            self._grown += 1
            self._speed_up()

    def record_throttling(self, start: ActiveRequest, reason: str, retry_after_s: float | None) -> None:
        """Record that the endpoint refused the request because it has too many. `retry_after_s` is the pause that it
        requests.
        """
        self._finish(start)
        self._slow_start = False
        now = self._now()
        hold_s = self._hold_s if retry_after_s is None else min(retry_after_s, LONGEST_HOLD_S)
        until = now + hold_s * self._random.uniform(1, 1.1)
        if start.at <= self._refused_at:
            self._add_late_refusal(start)
        else:
            self._hold_s = min(2 * self._hold_s, LONGEST_HOLD_S)
            self._refused_at = now
            self._refused += 1
            self._failures += 1
            if self.away_since is not None or (self._count_accepted() == 0 and self._failures >= _REFUSALS_IN_A_ROW):
                self._mark_away(start, reason, pause_s=hold_s)
            else:
                self._slow_down(start)
        self._held_until = max(self._held_until, until)

    def record_outage(self, start: ActiveRequest, reason: str) -> None:
        """Record that the endpoint was unreachable, or reported that it serves nothing."""
        self._finish(start)
        self._mark_away(start, reason)

    def record_failure(self, start: ActiveRequest, reason: str, request: object) -> None:
        """Record that the endpoint returned an unusable answer.

        `request` is the same in all tries of one request. Many failures in a row, of several requests, count as an
        outage.
        """
        self._finish(start)
        self._failures += 1
        if len(self._failing) < _FAILING_REQUESTS:
            self._failing.add(request)
        many = self._failures >= _FAILURES_IN_A_ROW and len(self._failing) >= _FAILING_REQUESTS
        if many or self.away_since is not None:
            self._mark_away(start, reason)

    def record_drop(self, start: ActiveRequest) -> None:
        """Record that the request was cancelled."""
        self._finish(start)

    def away_s(self) -> float | None:
        """Return how many seconds the endpoint has completed nothing. None while it completes requests."""
        return None if self.away_since is None else self._now() - self.away_since

    def _finish(self, start: ActiveRequest) -> None:
        self.in_flight -= 1
        if self._probe is start:
            self._probe = None

    def _free_at(self) -> float:
        return max(self._held_until, self._next_at)

    def _mark_away(self, start: ActiveRequest, reason: str, pause_s: float = 0.0) -> None:
        """Record that the endpoint is away, or still away, and schedule the next probe."""
        if self.away_since is None:
            self.away_since = self._now()
            # When it comes back, not all requests start at once.
            self.limit, self._slow_start, self._full_since = min(self.limit, FIRST_IN_FLIGHT), True, None
        elif start.probe:
            self.failed_probes += 1
        else:
            return
        self.reason = reason
        pause_s = max(pause_s, min(_FIRST_PROBE_S * 2 ** min(self.failed_probes, 10), _LONGEST_PROBE_S))
        self._probe_at = self._now() + pause_s * self._random.uniform(1, 1.25)

    def _count_accepted(self) -> int:
        """Return how many requests since the last refusal were not refused so far."""
        return self._number - self._first + 1 - self._refused

    def _slow_down(self, start: ActiveRequest) -> None:
        """Lower the rate, because a request that was sent at the current rate was refused."""
        refused_rate, self._sample = self.rate, self._measure(start)
        self._recent.clear()
        self._first, self._refused, self._busy_s, self._last_at = self._number + 1, 0, 0.0, self._now()
        self._lower_rate(self._sample, refused_rate)

    def _measure(self, start: ActiveRequest) -> _RateSample:
        if self.rate is not None:
            return _RateSample(self._first, self._number, self._busy_s, self._refused)
        sent = [each.number for each in self._recent if abs(each.at - start.at) <= _WINDOW_S / 2] or [start.number]
        return _RateSample(sent[0], sent[-1], _WINDOW_S, refused=1)

    def _add_late_refusal(self, start: ActiveRequest) -> None:
        """Count the refusal of a request that was sent before the rate was lowered. It only corrects the sample."""
        if self._sample is not None and self._sample.has(start):
            self._sample.refused += 1
            if self._guessed:
                self._lower_rate(self._sample, None)

    def _lower_rate(self, sample: _RateSample, refused_rate: float | None) -> None:
        """Lower the rate.

        The measured rate since the previous refusal is below the limit, so the refused rate is the better guess. If the
        measured rate is far below it, another kind of limit refused, such as a limit by the minute that let a burst
        through.
        """
        measured = sample.rate()
        self._guessed = refused_rate is None or measured < refused_rate / 3
        self._allowed = measured if refused_rate is None or self._guessed else refused_rate
        self._grown = 0
        self._set_rate()

    def _speed_up(self) -> None:
        self._set_rate()
        if self.rate is not None and self.rate > 2 * self._allowed:
            # The refusal was not a limit: the endpoint was overloaded for a while.
            self._allowed, self._guessed = self.rate, True
            self._grown = int(self._recovery_successes())

    def _recovery_successes(self) -> float:
        """Return how many successes lead back to the rate that seems to be allowed."""
        requests, seconds, longest_s = _GUESS_RECOVERY if self._guessed else _RECOVERY
        return max(2.0, min(requests + seconds * self._allowed, longest_s * self._allowed))

    def _set_rate(self) -> None:
        """Set the rate to a part of the allowed rate, which later grows to all of it and beyond."""
        past = self._grown / self._recovery_successes() - 1
        share = 1 + (1 - _REDUCED_SHARE if past < 0 else 1) * past**3
        self.rate = max(_SLOWEST, self._allowed * share)
