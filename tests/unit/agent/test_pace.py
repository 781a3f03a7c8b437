"""When requests to an endpoint may start, played through with a clock of the test's own."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

import pytest

from hermes_agent.models.pace import FIRST_IN_FLIGHT, MAX_IN_FLIGHT, ActiveRequest, Pace


class Server(Protocol):
    def lets_in(self, now: float) -> bool: ...


class TokenBucket:
    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._tokens, self._at = rate, burst, burst, 0.0

    def lets_in(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class SlidingWindow:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._taken: list[float] = []

    def lets_in(self, now: float) -> bool:
        self._taken = [at for at in self._taken if at > now - 1]
        if len(self._taken) >= self._rate:
            return False
        self._taken.append(now)
        return True


class FixedWindows:
    def __init__(self, rate: float) -> None:
        self._rate, self._window, self._taken = rate, -1, 0

    def lets_in(self, now: float) -> bool:
        window = int(now + 0.37)
        if window != self._window:
            self._window, self._taken = window, 0
        self._taken += 1
        return self._taken <= self._rate


class Played(NamedTuple):
    refused: int
    rate_after_a_minute: float


@dataclass
class Play:
    """Workers that each send a request as soon as the pace lets them, until `total` have been answered."""

    server: Server
    latency_s: float
    refusal_s: float
    seed: int
    retry_after_s: float | None = 1.0
    workers: int = 32
    total: int = 900
    now: float = 0.0
    events: list[tuple[float, int, str, ActiveRequest]] = field(default_factory=list)

    def run(self) -> Played:
        pace = Pace(lambda: self.now, Random(self.seed))
        self.jitter = Random(self.seed + 1)
        idle, unsent, refused, number = self.workers, self.total, 0, 0
        answered: list[float] = []
        while len(answered) < self.total:
            number += 1
            wait_s = pace.wait_s() if idle and unsent else math.inf
            if not self.events or self.now + wait_s < self.events[0][0]:
                self.now += wait_s + self.jitter.random() * 0.001
                idle, unsent = idle - 1, unsent - 1
                self._plan(self.jitter.random() * 0.002, number, "arrives", pace.start())
                continue
            at, _, what, start = heapq.heappop(self.events)
            self.now = max(self.now, at)
            if what == "arrives":
                good = self.server.lets_in(self.now)
                self._plan(self.latency_s if good else self.refusal_s, number, "good" if good else "refused", start)
                continue
            idle += 1
            if what == "good":
                answered.append(self.now)
                pace.record_success(start)
            else:
                refused, unsent = refused + 1, unsent + 1
                pace.record_throttling(start, "429", self.retry_after_s)
        late = [at for at in answered if at > 60]
        return Played(refused, len(late) / (answered[-1] - 60) if len(late) > 100 else len(answered) / answered[-1])

    def _plan(self, after_s: float, number: int, what: str, start: ActiveRequest) -> None:
        heapq.heappush(self.events, (self.now + after_s * self.jitter.uniform(0.8, 1.2), number, what, start))


SERVERS: dict[str, Callable[[float], Server]] = {
    "bucket": lambda rate: TokenBucket(rate, rate),
    "bucket of five seconds": lambda rate: TokenBucket(rate, 5 * rate),
    "sliding window": SlidingWindow,
    "fixed windows": FixedWindows,
}


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("rate", [2, 20])
@pytest.mark.parametrize("latency_s", [0.05, 2])
@pytest.mark.parametrize("retry_after_s", [1.0, None])
def test_few_are_refused_and_most_of_what_is_allowed_is_used(
    server: Callable[[float], Server], rate: int, latency_s: float, retry_after_s: float | None
) -> None:
    played = [Play(server(rate), latency_s, 0.05, seed, retry_after_s).run() for seed in range(10)]
    assert max(each.refused for each in played) <= 45, "of 900"
    possible = min(rate, 32 / latency_s)
    assert sum(each.rate_after_a_minute for each in played) / len(played) >= 0.8 * possible


class Storm:
    """Refuses at random for so many seconds, and nothing after."""

    def __init__(self, seconds: float, share: float) -> None:
        self._seconds, self._share, self._random = seconds, share, Random(3)

    def lets_in(self, now: float) -> bool:
        return now > self._seconds or self._random.random() > self._share


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("retry_after_s", [1.0, None])
def test_a_storm_of_refusals_is_forgotten(share: float, retry_after_s: float | None) -> None:
    play = Play(Storm(60, share), 0.05, 0.05, seed=1, retry_after_s=retry_after_s, total=5000)
    play.run()
    assert play.now < 60 + 240


def test_a_bucket_without_a_burst_is_found_out() -> None:
    played = Play(TokenBucket(20, 1), 0.05, 0.05, seed=1, total=3000).run()
    assert played.refused <= 60
    assert played.rate_after_a_minute >= 0.6 * 20, "from 1 a second, which the first burst made it seem"


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Middle(Random):
    """No jitter but the mean of it."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock, Middle())


def test_as_many_as_succeed_are_in_flight(pace: Pace) -> None:
    starts = []
    while pace.wait_s() == 0:
        starts.append(pace.start())
    assert len(starts) == FIRST_IN_FLIGHT
    assert pace.wait_s() > 0
    for start in starts:
        pace.record_success(start)
        while pace.wait_s() == 0:
            pace.start()
    assert pace.in_flight == pace.limit == 2 * FIRST_IN_FLIGHT


def test_answers_that_take_minutes_do_not_hold_the_others_back(pace: Pace, clock: Clock) -> None:
    started = clock.now
    while pace.in_flight < MAX_IN_FLIGHT:
        wait_s = pace.wait_s()
        if wait_s == 0:
            pace.start()
        clock.now += wait_s
    assert clock.now - started <= 35
    assert pace.wait_s() == math.inf


def test_after_a_refusal_time_alone_lets_no_more_start(pace: Pace, clock: Clock) -> None:
    starts = []
    while pace.wait_s() == 0:
        starts.append(pace.start())
    pace.record_throttling(starts.pop(), "busy", 1.0)
    pace.start()
    clock.now += 600
    assert pace.wait_s() == math.inf


def test_a_full_endpoint_that_was_idle_since_starts_to_count_anew(pace: Pace, clock: Clock) -> None:
    starts = []
    while pace.wait_s() == 0:
        starts.append(pace.start())
    first_wait_s = pace.wait_s()
    for start in starts:
        pace.record_drop(start)
    clock.now += 600
    while pace.in_flight < FIRST_IN_FLIGHT:
        assert pace.wait_s() == 0
        pace.start()
    assert pace.wait_s() == first_wait_s


def test_few_requests_raise_no_limit_and_many_raise_it_to_the_highest(pace: Pace) -> None:
    for _ in range(1000):
        pace.record_success(pace.start())
    assert pace.limit == FIRST_IN_FLIGHT
    starts = []
    for _ in range(3000):
        while pace.wait_s() == 0:
            starts.append(pace.start())
        pace.record_success(starts.pop())
    assert pace.limit == MAX_IN_FLIGHT


def test_retry_after_holds_all_back(pace: Pace, clock: Clock) -> None:
    _, second = pace.start(), pace.start()
    pace.record_throttling(second, "429", 7)
    assert 7 <= pace.wait_s() <= 8
    clock.now += 8
    assert pace.wait_s() == 0


def test_retry_after_is_obeyed_for_a_minute_at_most(pace: Pace) -> None:
    _, second = pace.start(), pace.start()
    pace.record_throttling(second, "429", 86_400)
    assert 60 <= pace.wait_s() <= 66


def test_without_retry_after_pauses_grow_until_a_success(pace: Pace, clock: Clock) -> None:
    first = pace.start()
    waits = []
    for _ in range(3):
        pace.record_throttling(pace.start(), "429", None)
        waits.append(round(pace.wait_s()))
        clock.now += pace.wait_s()
    pace.record_success(first)
    pace.record_throttling(pace.start(), "429", None)
    assert [*waits, round(pace.wait_s())] == [1, 2, 4, 1]


def test_refusals_of_one_time_are_one_refusal(pace: Pace, clock: Clock) -> None:
    starts = [pace.start() for _ in range(16)]
    clock.now += 0.1
    for start in starts[4:]:
        pace.record_throttling(start, "429", 1)
    assert pace.rate is not None
    assert 3 < pace.rate < 4, "four came through within a second"
    clock.now += 2
    later = [pace.start() for _ in range(3)]
    before = pace.rate
    clock.now += 0.1
    pace.record_throttling(later[2], "429", 1)
    lowered = pace.rate
    assert lowered < before
    pace.record_throttling(later[1], "429", 1)
    assert pace.rate == lowered


def test_requests_are_evenly_spaced_once_one_was_refused(pace: Pace, clock: Clock) -> None:
    starts = [pace.start() for _ in range(5)]
    pace.record_throttling(starts[-1], "429", 0)
    clock.now += 1
    for start in starts[:-1]:
        pace.record_success(start)
    gaps = []
    for _ in range(4):
        pace.start()
        gaps.append(pace.wait_s())
        clock.now += gaps[-1]
    assert pace.rate is not None
    assert gaps == pytest.approx([1 / pace.rate] * 4)


def test_a_rate_that_is_not_used_up_does_not_grow(pace: Pace, clock: Clock) -> None:
    first, second = pace.start(), pace.start()
    pace.record_throttling(second, "429", 0)
    pace.record_success(first)
    before = pace.rate
    for _ in range(1000):
        clock.now += 60
        pace.record_success(pace.start())
    assert pace.rate == before


def test_an_endpoint_that_is_away_is_asked_by_one_at_a_time(pace: Pace, clock: Clock) -> None:
    starts = [pace.start() for _ in range(5)]
    pauses = []
    for start in starts:
        pace.record_outage(start, "down")
    for _ in range(7):
        pauses.append(pace.wait_s())
        clock.now += pauses[-1]
        probe = pace.start()
        assert pace.wait_s() == math.inf, "nobody else asks"
        clock.now += 1
        pace.record_outage(probe, "down")
    assert all(0 < pause <= 20 for pause in pauses)
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 15
    assert pace.reason == "down"
    assert pace.away_s() == sum(pauses) + 7
    clock.now += pace.wait_s()
    pace.record_success(pace.start())
    assert (pace.away_s(), pace.reason, pace.wait_s()) == (None, "", 0)


def test_the_place_of_the_one_that_asks_is_free_when_it_is_called_off(pace: Pace, clock: Clock) -> None:
    pace.record_outage(pace.start(), "down")
    clock.now += 20
    pace.record_drop(pace.start())
    assert (pace.wait_s(), pace.in_flight) == (0, 0)


def test_one_that_comes_back_is_not_met_by_all_at_once(pace: Pace) -> None:
    starts = []
    for _ in range(500):
        while pace.wait_s() == 0:
            starts.append(pace.start())
        pace.record_success(starts.pop())
    assert pace.limit > 100
    for start in starts:
        pace.record_outage(start, "down")
    assert pace.limit == FIRST_IN_FLIGHT


def test_a_request_that_hangs_keeps_no_other_from_asking(pace: Pace, clock: Clock) -> None:
    starts = [pace.start() for _ in range(FIRST_IN_FLIGHT)]
    pace.record_outage(starts[0], "down")
    clock.now += 20
    pace.start()
    for _ in range(3):
        pace.record_outage(pace.start(), "down")
    assert pace.in_flight == FIRST_IN_FLIGHT


def test_many_failures_in_a_row_are_an_outage(pace: Pace) -> None:
    for number in range(7):
        pace.record_failure(pace.start(), "500", number)
    pace.record_success(pace.start())
    for number in range(7):
        pace.record_failure(pace.start(), "500", number)
    assert pace.away_s() is None
    pace.record_failure(pace.start(), "500", 7)
    assert pace.away_s() == 0


def test_failures_of_few_requests_are_no_outage(pace: Pace) -> None:
    for number in range(30):
        pace.record_failure(pace.start(), "500", number % 3)
    assert pace.away_s() is None
    pace.record_failure(pace.start(), "500", 3)
    assert pace.away_s() == 0


def test_one_that_lets_nothing_through_is_away(pace: Pace, clock: Clock) -> None:
    for refusals in range(1, 6):
        pace.record_throttling(pace.start(), "429", 2)
        assert (pace.away_since is None) == (refusals < 3)
        assert pace.wait_s() >= 2
        clock.now += pace.wait_s()
    probe = pace.start()
    assert pace.wait_s() == math.inf
    pace.record_success(probe)
    assert pace.away_since is None
