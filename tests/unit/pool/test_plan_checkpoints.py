"""The planner: sandboxes with checkpoints, and requests for slots that start from one."""

from hermes_exec.pool.plan import DRAIN_BEFORE_END_S, HAND_OVER_S, retires_at
from hermes_exec.pool.state import Phase, SandboxRecord
from tests.unit.pool.fake_pool import FakePool, config


def with_parent(max_sandboxes: int = 2, lifetime_s: float | None = None) -> tuple[FakePool, SandboxRecord, int]:
    """Return a pool with one sandbox of two slots and a checkpoint, and the holder of one of the slots."""
    pool = FakePool(config(max_sandboxes, per_sandbox=2, lifetime_s=lifetime_s))
    parent = pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    (sandbox,) = pool.state.sandboxes.values()
    sandbox.checkpoints = 1
    return pool, sandbox, parent


def test_fork_gets_a_slot_of_the_sandbox_of_its_checkpoint() -> None:
    pool, sandbox, _ = with_parent()
    second = pool.acquire("a")
    pool.reconcile()
    assert pool.held[second] == [sandbox.id]
    other = pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert other in pool.held
    pool.release(second)
    fork = pool.fork(sandbox)
    pool.reconcile()
    assert pool.held[fork] == [sandbox.id]


def test_forks_that_do_not_fit_get_slots_of_another_sandbox() -> None:
    pool, sandbox, parent = with_parent()
    forks = pool.fork(sandbox, slots=3)
    pool.reconcile()
    assert [each.template for each in pool.phase(Phase.LAUNCHING)] == ["a"]
    pool.launch_all()
    pool.reconcile()
    assert min(pool.held[forks]) == sandbox.id, "the sandbox with the checkpoint comes first"
    assert len(set(pool.held[forks])) == 2
    late = pool.fork(sandbox)
    pool.reconcile()
    assert late not in pool.held
    pool.release(parent)
    pool.reconcile()
    assert pool.held[late] == [sandbox.id]


def test_sandbox_that_ends_hands_its_checkpoints_over_before() -> None:
    for lead in ("lifetime", "engine"):
        pool, sandbox, parent = with_parent(lifetime_s=1000.0 if lead == "lifetime" else None)
        if lead == "engine":
            sandbox.ends_at = sandbox.launched_at + 10_000.0
        pool.release(parent)
        pool.now = sandbox.launched_at + (
            999.0 if lead == "lifetime" else 10_000.0 - DRAIN_BEFORE_END_S - HAND_OVER_S - 1
        )
        pool.reconcile()
        assert pool.handed_over == []
        pool.now += 2.0
        pool.reconcile()
        assert pool.handed_over == [sandbox.id]
        assert pool.closed == []
        fork = pool.fork(sandbox)
        pool.reconcile()
        assert pool.held[fork] == [sandbox.id]
        sandbox.checkpoints = 0
        pool.release(fork)
        pool.now += HAND_OVER_S
        pool.reconcile()
        assert pool.closed == [(sandbox.id, "lifetime")]
    short = SandboxRecord(9, "a", 1, 0.0, ends_at=DRAIN_BEFORE_END_S + 40.0)
    assert retires_at(short, None, keeps_checkpoints=True) == 30.0


def test_ordinary_request_prefers_sandboxes_without_checkpoints() -> None:
    pool, sandbox, parent = with_parent()
    gang = pool.acquire("a", slots=2)
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    pool.release(gang)
    pool.release(parent)
    single = pool.acquire("a")
    pool.reconcile()
    assert pool.held[single] != [sandbox.id]


def test_sandbox_with_a_checkpoint_is_kept_until_it_is_dropped() -> None:
    pool, sandbox, parent = with_parent(max_sandboxes=1)
    pool.release(parent)
    pool.now += 1000.0
    pool.reconcile()
    other = pool.acquire("b")
    pool.reconcile()
    assert pool.closed == [], "a sandbox with a checkpoint was closed because it was idle, or evicted"
    sandbox.checkpoints = 0
    pool.reconcile()
    assert pool.closed == [(sandbox.id, "evicted")]
    pool.close_all()
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert other in pool.held


def test_retired_sandbox_with_a_checkpoint_serves_only_forks_where_there_is_room() -> None:
    for reason in ("lifetime", "quarantined"):
        pool, sandbox, parent = with_parent(lifetime_s=DRAIN_BEFORE_END_S * 10)
        if reason == "lifetime":
            pool.now += DRAIN_BEFORE_END_S * 20
            pool.release(parent)
        else:
            other = pool.acquire("a")
            pool.reconcile()
            pool.release(other, clean=False)
            pool.release(parent)
        pool.reconcile()
        assert pool.closed == []
        ordinary = pool.acquire("a")
        fork = pool.fork(sandbox)
        pool.reconcile()
        pool.launch_all()
        pool.reconcile()
        assert pool.held[fork] == [sandbox.id]
        assert pool.held[ordinary] != [sandbox.id]
        sandbox.checkpoints = 0
        pool.release(fork)
        pool.reconcile()
        assert pool.closed == [(sandbox.id, reason)]


def test_fork_waits_while_the_sandbox_is_lost_and_fails_when_it_has_ended() -> None:
    pool, sandbox, _ = with_parent()
    sandbox.phase = Phase.LOST
    fork = pool.fork(sandbox)
    other = pool.acquire("a")
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    assert other in pool.held
    assert (pool.held.get(fork), pool.failed) == (None, [])
    pool.state.remove(sandbox)
    pool.reconcile()
    assert pool.failed == [fork]


def with_old_parent(max_sandboxes: int) -> tuple[FakePool, SandboxRecord]:
    """Return a pool with one sandbox of two free slots, which its checkpoints alone keep from being closed."""
    pool, sandbox, parent = with_parent(max_sandboxes, lifetime_s=1000.0)
    pool.release(parent)
    pool.now += 2000.0
    pool.reconcile()
    assert pool.handed_over == [sandbox.id]
    return pool, sandbox


def test_ordinary_request_gets_a_slot_of_an_old_sandbox_where_none_can_be_launched() -> None:
    pool, sandbox = with_old_parent(max_sandboxes=1)
    first, gang, late = pool.acquire("a"), pool.acquire("a", slots=2), pool.acquire("a")
    pool.reconcile()
    assert pool.held == {first: [sandbox.id]}, "a later request overtook a gang"
    fork = pool.fork(sandbox)
    pool.release(first)
    pool.reconcile()
    assert pool.held == {gang: [sandbox.id] * 2}
    pool.release(gang)
    pool.reconcile()
    assert pool.held == {late: [sandbox.id], fork: [sandbox.id]}
    sandbox.checkpoints = 0
    pool.release(late)
    pool.reconcile()
    another = pool.acquire("a")
    pool.reconcile()
    assert another not in pool.held, "a sandbox without checkpoints is past its lifetime"
    pool.release(fork)
    pool.reconcile()
    assert pool.closed == [(sandbox.id, "lifetime")]


def test_fork_of_another_checkpoint_gets_a_slot_of_an_old_sandbox() -> None:
    pool, old = with_old_parent(max_sandboxes=2)
    parents = [pool.acquire("a", slots=2)]
    pool.reconcile()
    pool.launch_all()
    pool.reconcile()
    (other,) = (each for each in pool.state.sandboxes.values() if each is not old)
    assert pool.held[parents[0]] == [other.id] * 2
    other.checkpoints = 1
    fork = pool.fork(other)
    pool.reconcile()
    assert pool.held[fork] == [old.id]


def test_old_sandbox_serves_only_forks_as_long_as_another_one_can_be_had() -> None:
    for reason in ("room", "idle", "closing"):
        pool, old = with_old_parent(max_sandboxes=2)
        if reason != "room":
            other = pool.acquire("b")
            pool.reconcile()
            pool.launch_all()
            pool.reconcile()
            pool.release(other)
        if reason == "closing":
            pool.now += 100.0
            pool.reconcile()
            assert pool.closed
        ordinary = pool.acquire("a")
        pool.reconcile()
        assert ordinary not in pool.held
        pool.close_all()
        pool.reconcile()
        pool.launch_all()
        pool.reconcile()
        assert pool.held[ordinary] != [old.id]


def test_old_sandbox_serves_all_while_the_engine_has_no_room() -> None:
    pool, old = with_old_parent(max_sandboxes=4)
    ordinary = pool.acquire("a")
    pool.reconcile()
    assert ordinary not in pool.held
    pool.fail_all(away=True)
    pool.reconcile()
    assert pool.held[ordinary] == [old.id]


def test_sandbox_gets_no_new_holders_in_the_last_minute_before_its_engine_ends_it() -> None:
    pool, old = with_old_parent(max_sandboxes=1)
    old.ends_at = pool.now + DRAIN_BEFORE_END_S - 1.0
    ordinary = pool.acquire("a")
    pool.reconcile()
    assert ordinary not in pool.held
    old.ends_at += 2.0
    pool.reconcile()
    assert pool.held[ordinary] == [old.id]
