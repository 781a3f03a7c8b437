"""The planner: worked examples."""

import math
import sys
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

from hermes_exec.pool.plan import PlanConfig, TemplateSize, plan
from hermes_exec.pool.state import Phase
from tests.unit.pool.world import LARGE, SMALL, World, config


def test_slots_are_lent_in_order_of_arrival() -> None:
    world = World(config(1, per_sandbox=1))
    waiters = [world.acquire() for _ in range(4)]
    world.run_dry()
    assert [waiter.id for waiter in world.lent] == waiters


def test_a_gang_gets_all_or_nothing_and_is_not_overtaken() -> None:
    world = World(config(1, per_sandbox=2))
    first = world.acquire()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    gang = world.acquire(slots=2)
    late = world.acquire()
    world.reconcile()
    assert [waiter.id for waiter in world.lent] == [first]
    world.release(first)
    world.reconcile()
    assert [waiter.id for waiter in world.lent] == [first, gang]
    world.release(gang)
    world.reconcile()
    assert [waiter.id for waiter in world.lent] == [first, gang, late]


def test_an_idle_sandbox_of_another_kind_is_evicted_only_when_the_cap_is_hit() -> None:
    world = World(config(2))
    first = world.acquire("a")
    world.run_dry()
    assert first not in world.held
    world.acquire("b")
    world.reconcile()
    assert world.closed == []
    world.launch_all()
    world.reconcile()
    world.acquire("c")
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["evicted"]
    assert world.phase(Phase.LAUNCHING) == []
    world.close_all()
    world.reconcile()
    assert [sandbox.template for sandbox in world.phase(Phase.LAUNCHING)] == ["c"]


def test_a_busy_sandbox_of_another_kind_is_drained_for_an_earlier_waiter() -> None:
    world = World(config(1))
    first = world.acquire("a")
    world.reconcile()
    world.launch_all()
    world.reconcile()
    other = world.acquire("b")
    late = world.acquire("a")
    world.reconcile()
    assert late not in world.held, "a free slot of the sandbox that must go was lent to a later waiter"
    world.release(first)
    world.reconcile()
    world.close_all()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    assert other in world.held


def test_launch_failures_back_off_and_reach_the_waiter() -> None:
    world = World(config())
    waiter = world.acquire()
    tries = []
    for _ in range(10):
        wake_at = world.reconcile()
        if waiter in world.failed:
            break
        if world.phase(Phase.LAUNCHING):
            tries.append(world.now)
            world.fail_all()
        else:
            world.now = wake_at
    assert waiter in world.failed
    assert [round(later - earlier, 3) for earlier, later in pairwise(tries)] == [0.5, 1.0]
    later = world.acquire()
    wake_at = world.reconcile()
    assert later not in world.failed, "a waiter fails only for launches since it came"
    assert wake_at == tries[-1] + 2.0


def test_a_hopeless_launch_is_not_tried_again() -> None:
    world = World(config())
    waiter = world.acquire()
    world.reconcile()
    world.fail_all(hopeless=True)
    world.reconcile()
    assert world.failed == [waiter]


def test_launches_that_fail_together_count_once() -> None:
    world = World(config(4, per_sandbox=1))
    for _ in range(4):
        world.acquire()
    world.reconcile()
    assert len(world.phase(Phase.LAUNCHING)) == 4
    world.fail_all()
    assert world.state.history("a").failures == 1


def test_a_waiter_that_living_sandboxes_can_serve_does_not_fail() -> None:
    world = World(config(2, per_sandbox=1))
    first = world.acquire()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    second = world.acquire()
    world.reconcile()
    world.fail_all(hopeless=True)
    world.reconcile()
    assert world.failed == []
    world.release(first)
    world.reconcile()
    assert second in world.held


def with_a_quarantined_slot(per_sandbox: int) -> tuple[World, int, int]:
    """A sandbox of which one slot was not clean; who holds another one, and who came after."""
    world = World(config(1, per_sandbox=per_sandbox))
    one, two = world.acquire(), world.acquire()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    world.release(one, clean=False)
    three = world.acquire()
    world.reconcile()
    return world, two, three


def test_a_quarantined_slot_takes_only_itself_out_of_lending() -> None:
    world, two, three = with_a_quarantined_slot(per_sandbox=3)
    assert three in world.held
    assert world.closed == []
    world.release(two)
    world.release(three)
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["quarantined"]


def test_sandboxes_that_are_used_once_are_replaced_and_the_next_is_launched_ahead() -> None:
    world = World(PlanConfig(3, {"a": TemplateSize(1, used_once=True, idle_timeout_s=50)}))
    for lend in range(4):
        held = world.acquire()
        world.reconcile()
        world.launch_all()
        world.reconcile()
        assert held in world.held
        world.launch_all()
        assert len([sandbox for sandbox in world.phase(Phase.READY) if sandbox.free]) == (lend >= 2)
        world.release(held)
        world.reconcile()
        world.close_all()
    assert {reason for _, reason in world.closed} == {"used"}
    world.now = world.reconcile()
    world.reconcile()
    world.close_all()
    assert world.reconcile() == math.inf
    assert world.state.sandboxes == {}


def test_a_sandbox_of_quarantined_slots_goes_with_its_last_holder() -> None:
    world, two, three = with_a_quarantined_slot(per_sandbox=2)
    assert three not in world.held
    assert world.closed == []
    world.release(two)
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["quarantined"]
    world.close_all()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    assert three in world.held


def test_idle_sandboxes_go_after_the_idle_time_down_to_the_minimum() -> None:
    world = World(config(3, minimum=1))
    world.acquire(slots=6)
    world.run_dry()
    assert len(world.state.sandboxes) == 3
    world.now = world.reconcile()
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["idle", "idle"]
    world.close_all()
    assert world.reconcile() == math.inf
    assert len(world.phase(Phase.READY)) == 1


def test_an_old_sandbox_is_replaced_when_it_is_free() -> None:
    world = World(config(1, lifetime_s=50.0))
    holder = world.acquire()
    world.reconcile()
    world.launch_all()
    world.reconcile()
    world.now += 51
    late = world.acquire()
    world.reconcile()
    assert late not in world.held
    world.release(holder)
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["lifetime"]


def test_a_sandbox_close_to_its_end_is_not_lent() -> None:
    world = World(config(2))
    first = world.acquire()
    world.reconcile()
    world.launch_all()
    (sandbox,) = world.state.sandboxes.values()
    sandbox.ends_at = world.now + 61
    assert world.reconcile() == world.now + 1
    assert first in world.held
    world.now += 2
    late = world.acquire()
    world.reconcile()
    assert late not in world.held
    world.launch_all()
    world.reconcile()
    assert late in world.held
    world.release(first)
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["lifetime"]


def test_prewarming_is_done_when_the_sandboxes_are_ready() -> None:
    world = World(config(3))
    waiter = world.state.enqueue("a", world.now, slots=0, sandboxes=2)
    world.reconcile()
    assert len(world.phase(Phase.LAUNCHING)) == 2
    assert world.warmed == []
    world.launch_all()
    world.reconcile()
    assert world.warmed == [waiter.id]


def of_two_hosts(**more: Any) -> World:
    """Two sandboxes, one large and one small, as `World.launched` has them."""
    return World(PlanConfig(2, {"e": TemplateSize(2, 0, None, 100.0, largest=LARGE, **more)}))


def test_a_gang_that_takes_sandboxes_of_different_sizes_is_lent() -> None:
    world = of_two_hosts()
    gang = world.acquire("e", LARGE + SMALL)
    world.run_dry()
    assert [waiter.id for waiter in world.lent] == [gang]
    assert sorted(sandbox.size for sandbox in world.phase(Phase.READY)) == [SMALL, LARGE]
    assert world.closed == []


def test_sandboxes_are_wanted_until_their_slots_are_enough_whatever_was_expected_of_them() -> None:
    world = of_two_hosts()
    for _ in range(2):
        world.acquire("e")
    world.large_host_away = True
    world.reconcile()
    assert len(world.phase(Phase.LAUNCHING)) == 1
    world.launch_all()
    world.reconcile()
    assert (len(world.lent), len(world.phase(Phase.LAUNCHING))) == (1, 1)
    world.launch_all()
    world.reconcile()
    assert len(world.lent) == 2


def test_an_idle_sandbox_that_is_too_small_makes_room_for_a_larger_one() -> None:
    world = of_two_hosts()
    world.large_host_away = True
    first = [world.acquire("e") for _ in range(2)]
    for _ in range(2):
        world.reconcile()
        world.launch_all()
    world.reconcile()
    assert [sandbox.size for sandbox in world.phase(Phase.READY)] == [SMALL, SMALL]
    gang = world.acquire("e", LARGE + SMALL)
    world.now += 11
    world.reconcile()
    assert world.closed == [], "both are held"
    world.release(first[0])
    world.reconcile()
    assert [reason for _, reason in world.closed] == ["replaced"]
    world.close_all()
    world.reconcile()
    world.launch_all()
    replaced_at = world.now + 10
    assert world.reconcile() == replaced_at, "the host is still away: what came is not replaced at once"
    world.large_host_away = False
    world.now = replaced_at
    world.reconcile()
    world.close_all()
    world.reconcile()
    world.launch_all()
    world.release(first[1])
    world.reconcile()
    assert gang in world.held


def settle(world: World) -> None:
    for _ in range(3):
        world.reconcile()
        world.launch_all()
        world.close_all()
        assert len(world.state.sandboxes) <= world.config.max_sandboxes


EVENTS: tuple[Callable[[World], object], ...] = (
    lambda world: world.acquire("e"),
    lambda world: world.acquire("e", LARGE + SMALL),
    lambda world: world.release(next(iter(world.held))) if world.held else None,
    lambda world: setattr(world, "large_host_away", not world.large_host_away),
    settle,
)


def test_everybody_is_served_by_sandboxes_of_different_sizes_after_every_short_history() -> None:
    for history in product(EVENTS, repeat=5):
        world = of_two_hosts()
        for event in history:
            event(world)
        waiting = set(world.state.waiters)
        world.run_dry()
        assert waiting <= {waiter.id for waiter in world.lent}


def test_a_sandbox_that_is_as_large_as_there_are_is_kept() -> None:
    world = World(config(3, per_sandbox=2))
    world.acquire(slots=2)
    world.run_dry()
    lost = world.acquire(slots=4)
    world.reconcile()
    world.launch_all()
    world.reconcile()
    for sandbox in world.phase(Phase.READY)[:1]:
        sandbox.phase = Phase.LOST
    world.release(lost)
    world.acquire(slots=6)
    world.now += 60
    world.reconcile()
    assert world.closed == []


def test_who_waits_for_an_engine_that_is_away_goes_on_waiting() -> None:
    world = World(config())
    waiter = world.acquire()
    for failures in [{"away": True}] * 20 + [{}] * 3:
        wake_at = world.reconcile()
        assert world.failed == []
        if not world.phase(Phase.LAUNCHING):
            world.now = wake_at
            world.reconcile()
        world.fail_all(**failures)
    assert world.state.history("a").failures == 3, "counted anew when it is another trouble"
    world.reconcile()
    assert world.failed == [waiter]


def test_few_are_launched_at_once() -> None:
    world = World(PlanConfig(10, {"a": TemplateSize(1, 0, None, None)}, launches_at_once=2))
    for _ in range(4):
        world.acquire()
    assert world.reconcile() == math.inf
    assert len(world.phase(Phase.LAUNCHING)) == 2
    world.launch_all()
    world.reconcile()
    assert len(world.phase(Phase.LAUNCHING)) == 2


def test_the_work_of_a_plan_grows_no_faster_than_the_line() -> None:
    def work(waiting: int) -> int:
        world = World(config(16))
        for number in range(waiting):
            world.acquire("ab"[number % 2])
        world.reconcile()
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            plan(world.state, world.config, world.now)
        finally:
            sys.setprofile(None)
        return calls

    assert 0 < work(1000) < 3 * work(500)
