"""The planner where slots are spread over hosts: evenly, without a long wait, and with room for other templates."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from hermes_exec.pool.decisions import PlanConfig, TemplateSize
from hermes_exec.pool.spread import SPREAD_WAIT_S
from hermes_exec.pool.state import Phase
from tests.unit.pool.fake_pool import FakePool

HOSTS, SLOTS = 3, 64


def on_hosts(hosts: int = HOSTS, max_sandboxes: int | None = None, **others: TemplateSize) -> FakePool:
    """A pool with large sandboxes, as the ssh backend has them."""
    size = TemplateSize(SLOTS, 0, None, 100.0, spread=hosts)
    return FakePool(PlanConfig(max_sandboxes or hosts, {"a": size, **others}))


def in_use(pool: FakePool) -> list[int]:
    return sorted(sandbox.in_use for sandbox in pool.phase(Phase.READY))


def launch_one_by_one(pool: FakePool, every_s: float) -> None:
    """The launches succeed one after the other."""
    while launching := pool.phase(Phase.LAUNCHING):
        pool.complete_launch(launching[0])
        pool.reconcile()
        pool.now += every_s
        pool.reconcile()


@pytest.mark.parametrize("every_s", [0.0, 0.5])
def test_workers_of_a_batch_are_spread_evenly(every_s: float) -> None:
    pool = on_hosts()
    workers = [pool.acquire() for _ in range(24)]
    pool.reconcile()
    assert len(pool.phase(Phase.LAUNCHING)) == HOSTS
    launch_one_by_one(pool, every_s)
    assert in_use(pool) == [8, 8, 8]
    where: Counter[int] = Counter()
    for _ in range(100):
        pool.release(workers.pop(0))
        workers.append(pool.acquire())
        pool.reconcile()
        where[pool.held[workers[-1]][0]] += 1
    assert in_use(pool) == [8, 8, 8]
    assert min(where.values()) > 30


def test_gang_is_spread_evenly() -> None:
    pool = on_hosts()
    gang = pool.acquire(slots=24)
    pool.reconcile()
    launch_one_by_one(pool, 0.1)
    assert sorted(Counter(pool.held[gang]).values()) == [8, 8, 8]


def test_gang_as_large_as_all_sandboxes_needs_no_further_launch() -> None:
    pool = on_hosts(max_sandboxes=HOSTS + 3)
    gang = pool.acquire(slots=HOSTS * SLOTS)
    pool.reconcile()
    launch_one_by_one(pool, 0.1)
    assert gang in pool.held
    assert len(pool.state.sandboxes) == HOSTS


def test_one_request_takes_one_sandbox() -> None:
    pool = on_hosts()
    held = pool.acquire()
    pool.reconcile()
    pool.launch_all()
    assert pool.reconcile() == math.inf
    assert held in pool.held
    assert len(pool.state.sandboxes) == 1


def test_request_beside_a_free_slot_waits_for_no_launch() -> None:
    pool = on_hosts()
    pool.acquire()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    later = pool.acquire()
    pool.reconcile()
    assert later in pool.held
    assert len(pool.phase(Phase.LAUNCHING)) == 1, "for the requests that come next"


def test_slots_are_kept_back_for_a_slow_host_only_for_a_moment() -> None:
    pool = on_hosts()
    waiters = [pool.acquire() for _ in range(24)]
    pool.reconcile()
    pool.complete_launch(pool.phase(Phase.LAUNCHING)[0])
    ready_at = pool.now
    assert pool.reconcile() == ready_at + SPREAD_WAIT_S
    assert len(pool.held) == 8
    assert list(pool.held) == waiters[:8]
    pool.now = ready_at + SPREAD_WAIT_S
    pool.reconcile()
    assert len(pool.held) == 24


def test_slots_are_not_kept_back_for_a_host_that_fails() -> None:
    pool = on_hosts()
    for _ in range(24):
        pool.acquire()
    pool.reconcile()
    pool.complete_launch(pool.phase(Phase.LAUNCHING)[0])
    pool.fail_all()
    pool.reconcile()
    assert len(pool.held) == 24


def test_spread_leaves_room_for_other_templates() -> None:
    pool = on_hosts(b=TemplateSize(SLOTS, 0, None, 100.0, spread=HOSTS))
    for _ in range(24):
        pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert in_use(pool) == [12, 12]
    other = pool.acquire("b")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert other in pool.held


def test_sandboxes_without_demand_end_after_the_idle_time() -> None:
    pool = on_hosts()
    held = [pool.acquire() for _ in range(6)]
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    for each in held[1:]:
        pool.release(each)
    pool.now += 200
    pool.reconcile()
    assert [reason for _, reason in pool.closed] == ["idle", "idle"]
