"""The planner: worked examples."""

import math
import sys
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

from hermes_exec.pool.decisions import PlanConfig, TemplateSize
from hermes_exec.pool.plan import plan
from hermes_exec.pool.state import Phase
from tests.unit.pool.fake_pool import LARGE, SMALL, FakePool, config


def test_slots_are_acquired_in_order_of_arrival() -> None:
    pool = FakePool(config(1, per_sandbox=1))
    waiters = [pool.acquire() for _ in range(4)]
    pool.run_dry()
    assert [waiter.id for waiter in pool.served] == waiters


def test_a_gang_gets_all_or_nothing_and_is_not_overtaken() -> None:
    pool = FakePool(config(1, per_sandbox=2))
    first = pool.acquire()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    gang = pool.acquire(slots=2)
    late = pool.acquire()
    pool.reconcile()
    assert [waiter.id for waiter in pool.served] == [first]
    pool.release(first)
    pool.reconcile()
    assert [waiter.id for waiter in pool.served] == [first, gang]
    pool.release(gang)
    pool.reconcile()
    assert [waiter.id for waiter in pool.served] == [first, gang, late]


def test_an_idle_sandbox_of_another_kind_is_evicted_only_when_the_cap_is_hit() -> None:
    pool = FakePool(config(2))
    first = pool.acquire("a")
    pool.run_dry()
    assert first not in pool.held
    pool.acquire("b")
    pool.reconcile()
    assert pool.closed == []
    pool.launch_all()
    pool.reconcile()
    pool.acquire("c")
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["evicted"]
    assert pool.phase(Phase.LAUNCHING) == []
    pool.close_all()
    pool.reconcile()
    assert [sandbox.template for sandbox in pool.phase(Phase.LAUNCHING)] == ["c"]


def test_a_busy_sandbox_of_another_kind_is_drained_for_an_earlier_waiter() -> None:
    pool = FakePool(config(1))
    first = pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    other = pool.acquire("b")
    late = pool.acquire("a")
    pool.reconcile()
    assert late not in pool.held, "a free slot of the sandbox that must go went to a later waiter"
    pool.release(first)
    pool.reconcile()
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert other in pool.held


def test_launch_failures_back_off_and_reach_the_waiter() -> None:
    pool = FakePool(config())
    waiter = pool.acquire()
    tries = []
    for _ in range(10):
        wake_at = pool.reconcile()
        if waiter in pool.failed:
            break
        if pool.phase(Phase.LAUNCHING):
            tries.append(pool.now)
            pool.fail_all()
        else:
            pool.now = wake_at
    assert waiter in pool.failed
    assert [round(later - earlier, 3) for earlier, later in pairwise(tries)] == [0.5, 1.0]
    later = pool.acquire()
    wake_at = pool.reconcile()
    assert later not in pool.failed, "a waiter fails only for launches since it came"
    assert wake_at == tries[-1] + 2.0


def test_a_hopeless_launch_is_not_tried_again() -> None:
    pool = FakePool(config())
    waiter = pool.acquire()
    pool.reconcile()
    pool.fail_all(hopeless=True)
    pool.reconcile()
    assert pool.failed == [waiter]


def test_launches_that_fail_together_count_once() -> None:
    pool = FakePool(config(4, per_sandbox=1))
    for _ in range(4):
        pool.acquire()
    pool.reconcile()
    assert len(pool.phase(Phase.LAUNCHING)) == 4
    pool.fail_all()
    assert pool.state.history("a").failures == 1


def test_a_waiter_that_living_sandboxes_can_serve_does_not_fail() -> None:
    pool = FakePool(config(2, per_sandbox=1))
    first = pool.acquire()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    second = pool.acquire()
    pool.reconcile()
    pool.fail_all(hopeless=True)
    pool.reconcile()
    assert pool.failed == []
    pool.release(first)
    pool.reconcile()
    assert second in pool.held


def with_a_quarantined_slot(per_sandbox: int) -> tuple[FakePool, int, int]:
    """A sandbox of which one slot was not clean; who holds another one, and who came after."""
    pool = FakePool(config(1, per_sandbox=per_sandbox))
    one, two = pool.acquire(), pool.acquire()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    pool.release(one, clean=False)
    three = pool.acquire()
    pool.reconcile()
    return pool, two, three


def test_a_quarantined_slot_takes_only_itself_out_of_use() -> None:
    pool, two, three = with_a_quarantined_slot(per_sandbox=3)
    assert three in pool.held
    assert pool.closed == []
    pool.release(two)
    pool.release(three)
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["quarantined"]


def test_sandboxes_that_are_used_once_are_replaced_and_the_next_is_launched_ahead() -> None:
    pool = FakePool(PlanConfig(3, {"a": TemplateSize(1, used_once=True, idle_timeout_s=50)}))
    for turn in range(4):
        held = pool.acquire()
        pool.reconcile()
        pool.launch_all()
        pool.reconcile()
        assert held in pool.held
        pool.launch_all()
        assert len([sandbox for sandbox in pool.phase(Phase.READY) if sandbox.free]) == (turn >= 2)
        pool.release(held)
        pool.reconcile()
        pool.close_all()
    assert {reason for _, reason in pool.closed} == {"used"}
    pool.now = pool.reconcile()
    pool.reconcile()
    pool.close_all()
    assert pool.reconcile() == math.inf
    assert pool.state.sandboxes == {}


def test_a_sandbox_of_quarantined_slots_goes_with_its_last_holder() -> None:
    pool, two, three = with_a_quarantined_slot(per_sandbox=2)
    assert three not in pool.held
    assert pool.closed == []
    pool.release(two)
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["quarantined"]
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert three in pool.held


def test_idle_sandboxes_go_after_the_idle_time_down_to_the_minimum() -> None:
    pool = FakePool(config(3, minimum=1))
    pool.acquire(slots=6)
    pool.run_dry()
    assert len(pool.state.sandboxes) == 3
    pool.now = pool.reconcile()
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["idle", "idle"]
    pool.close_all()
    assert pool.reconcile() == math.inf
    assert len(pool.phase(Phase.READY)) == 1


def test_an_old_sandbox_is_replaced_when_it_is_free() -> None:
    pool = FakePool(config(1, lifetime_s=50.0))
    holder = pool.acquire()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    pool.now += 51
    late = pool.acquire()
    pool.reconcile()
    assert late not in pool.held
    pool.release(holder)
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["lifetime"]


def test_a_sandbox_close_to_its_end_is_not_acquired() -> None:
    pool = FakePool(config(2))
    first = pool.acquire()
    pool.reconcile()
    pool.launch_all()
    (sandbox,) = pool.state.sandboxes.values()
    sandbox.ends_at = pool.now + 61
    assert pool.reconcile() == pool.now + 1
    assert first in pool.held
    pool.now += 2
    late = pool.acquire()
    pool.reconcile()
    assert late not in pool.held
    pool.launch_all()
    pool.reconcile()
    assert late in pool.held
    pool.release(first)
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["lifetime"]


def test_prewarming_is_done_when_the_sandboxes_are_ready() -> None:
    pool = FakePool(config(3))
    waiter = pool.state.enqueue("a", pool.now, slots=0, sandboxes=2)
    pool.reconcile()
    assert len(pool.phase(Phase.LAUNCHING)) == 2
    assert pool.warmed == []
    pool.launch_all()
    pool.reconcile()
    assert pool.warmed == [waiter.id]


def test_prewarming_of_a_template_without_sandboxes_drains_another_as_a_request_does() -> None:
    pool = FakePool(config(1))
    first = pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    waiter = pool.state.enqueue("b", pool.now, slots=0, sandboxes=1)
    late = pool.acquire("a")
    pool.reconcile()
    assert late not in pool.held
    pool.release(first)
    pool.reconcile()
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert pool.warmed == [waiter.id]


def of_two_hosts(**more: Any) -> FakePool:
    """Two sandboxes, one large and one small, as `FakePool.complete_launch` has them."""
    return FakePool(PlanConfig(2, {"e": TemplateSize(2, 0, None, 100.0, largest=LARGE, **more)}))


def test_a_gang_that_takes_sandboxes_of_different_sizes_is_acquired() -> None:
    pool = of_two_hosts()
    gang = pool.acquire("e", LARGE + SMALL)
    pool.run_dry()
    assert [waiter.id for waiter in pool.served] == [gang]
    assert sorted(sandbox.size for sandbox in pool.phase(Phase.READY)) == [SMALL, LARGE]
    assert pool.closed == []


def test_sandboxes_are_wanted_until_their_slots_are_enough_whatever_was_expected_of_them() -> None:
    pool = of_two_hosts()
    for _ in range(2):
        pool.acquire("e")
    pool.large_host_away = True
    pool.reconcile()
    assert len(pool.phase(Phase.LAUNCHING)) == 1
    pool.launch_all()
    pool.reconcile()
    assert (len(pool.served), len(pool.phase(Phase.LAUNCHING))) == (1, 1)
    pool.launch_all()
    pool.reconcile()
    assert len(pool.served) == 2


def test_an_idle_sandbox_that_is_too_small_makes_room_for_a_larger_one() -> None:
    pool = of_two_hosts()
    pool.large_host_away = True
    first = [pool.acquire("e") for _ in range(2)]
    for _ in range(2):
        pool.reconcile()
        pool.launch_all()
    pool.reconcile()
    assert [sandbox.size for sandbox in pool.phase(Phase.READY)] == [SMALL, SMALL]
    gang = pool.acquire("e", LARGE + SMALL)
    pool.now += 11
    pool.reconcile()
    assert pool.closed == [], "both are held"
    pool.release(first[0])
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["replaced"]
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    replaced_at = pool.now + 10
    assert pool.reconcile() == replaced_at, "the host is still away: what came is not replaced at once"
    pool.large_host_away = False
    pool.now = replaced_at
    pool.reconcile()
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    pool.release(first[1])
    pool.reconcile()
    assert gang in pool.held


def settle(pool: FakePool) -> None:
    for _ in range(3):
        pool.reconcile()
        pool.launch_all()
        pool.close_all()
        assert len(pool.state.sandboxes) <= pool.config.max_sandboxes


EVENTS: tuple[Callable[[FakePool], object], ...] = (
    lambda pool: pool.acquire("e"),
    lambda pool: pool.acquire("e", LARGE + SMALL),
    lambda pool: pool.release(next(iter(pool.held))) if pool.held else None,
    lambda pool: setattr(pool, "large_host_away", not pool.large_host_away),
    settle,
)


def test_everybody_is_served_by_sandboxes_of_different_sizes_after_every_short_history() -> None:
    for history in product(EVENTS, repeat=5):
        pool = of_two_hosts()
        for event in history:
            event(pool)
        waiting = set(pool.state.waiters)
        pool.run_dry()
        assert waiting <= {waiter.id for waiter in pool.served}


def test_a_sandbox_that_is_as_large_as_there_are_is_kept() -> None:
    pool = FakePool(config(3, per_sandbox=2))
    pool.acquire(slots=2)
    pool.run_dry()
    lost = pool.acquire(slots=4)
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    for sandbox in pool.phase(Phase.READY)[:1]:
        sandbox.phase = Phase.LOST
    pool.release(lost)
    pool.acquire(slots=6)
    pool.now += 60
    pool.reconcile()
    assert pool.closed == []


def test_who_waits_for_an_engine_that_is_away_goes_on_waiting() -> None:
    pool = FakePool(config())
    waiter = pool.acquire()
    for failures in [{"away": True}] * 20 + [{}] * 3:
        wake_at = pool.reconcile()
        assert pool.failed == []
        if not pool.phase(Phase.LAUNCHING):
            pool.now = wake_at
            pool.reconcile()
        pool.fail_all(**failures)
    assert pool.state.history("a").failures == 3, "counted anew when it is another trouble"
    pool.reconcile()
    assert pool.failed == [waiter]


def test_few_are_launched_at_once() -> None:
    pool = FakePool(PlanConfig(10, {"a": TemplateSize(1, 0, None, None)}, launches_at_once=2))
    for _ in range(4):
        pool.acquire()
    assert pool.reconcile() == math.inf
    assert len(pool.phase(Phase.LAUNCHING)) == 2
    pool.launch_all()
    pool.reconcile()
    assert len(pool.phase(Phase.LAUNCHING)) == 2


def test_the_work_of_a_plan_grows_no_faster_than_the_line() -> None:
    def work(waiting: int) -> int:
        pool = FakePool(config(16))
        for number in range(waiting):
            pool.acquire("ab"[number % 2])
        pool.reconcile()
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            plan(pool.state, pool.config, pool.now)
        finally:
            sys.setprofile(None)
        return calls

    assert 0 < work(1000) < 3 * work(500)
