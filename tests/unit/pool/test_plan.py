"""The planner: worked examples, and random histories in which its promises must hold."""

import math
import sys
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hermes_exec.ledger import BoxEntry, Ledger, Phase, Waiter
from hermes_exec.plan import Close, Fail, KindPlan, Launch, Lend, PlanConfig, plan

DELAYS = (0.5, 30.0)


def config(
    max_sandboxes: int = 2, *, per_box: int = 2, minimum: int = 0, lifetime_s: float | None = None
) -> PlanConfig:
    return PlanConfig(max_sandboxes, kinds(per_box, minimum, lifetime_s), launch_interval_s=0.0)


def kinds(per_box: int, minimum: int, lifetime_s: float | None) -> dict[str, KindPlan]:
    return {
        "a": KindPlan(per_box, minimum, None, 10.0, lifetime_s),
        "b": KindPlan(3, 0, None, 10.0, lifetime_s),
        "c": KindPlan(1, 0, 1, 10.0, lifetime_s),
    }


class World:
    """Carries a plan out as the pool does, without a pool."""

    def __init__(self, config: PlanConfig) -> None:
        self.config = config
        self.ledger = Ledger()
        self.now = 100.0
        self.held: dict[int, list[int]] = {}
        self.failed: list[int] = []
        self.lent: list[Waiter] = []
        self.warmed: list[int] = []
        self.closed: list[tuple[int, str]] = []

    def settle(self) -> float:
        """Carry out plans until one has nothing to do; its time to wake."""
        for _ in range(200):
            decided = plan(self.ledger, self.config, self.now)
            if not decided.actions:
                assert decided.wake_at > self.now
                return decided.wake_at
            for action in decided.actions:
                self.carry_out(action)
        raise AssertionError("the planner does not come to rest")

    def carry_out(self, action: object) -> None:
        match action:
            case Launch(kind):
                self.ledger.launching(kind, self.config.kinds[kind].slots_per_sandbox, self.now)
            case Lend(waiter, shares):
                for box_id, count in shares.items():
                    box = self.ledger.boxes[box_id]
                    assert box.lendable
                    assert 0 < count <= box.free
                    assert box.kind == waiter.kind
                self.ledger.lend(waiter, shares)
                assert sum(shares.values()) == waiter.slots or waiter.boxes
                if waiter.boxes:
                    self.warmed.append(waiter.id)
                else:
                    self.lent.append(waiter)
                    self.held[waiter.id] = [box_id for box_id, count in shares.items() for _ in range(count)]
            case Close(box_id, reason):
                box = self.ledger.boxes[box_id]
                assert box.lent == 0
                assert box.phase is Phase.READY
                box.phase = Phase.CLOSING
                self.closed.append((box_id, reason))
            case Fail(waiter):
                del self.ledger.waiters[waiter.id]
                self.failed.append(waiter.id)
            case _:
                raise AssertionError(action)

    def phase(self, phase: Phase) -> list[BoxEntry]:
        return [box for box in self.ledger.boxes.values() if box.phase is phase]

    def launch_all(self) -> None:
        for box in self.phase(Phase.LAUNCHING):
            self.ledger.launched(box, self.now)

    def close_all(self) -> None:
        for box in self.phase(Phase.CLOSING):
            self.ledger.remove(box)

    def fail_all(self, *, hopeless: bool = False) -> None:
        for box in self.phase(Phase.LAUNCHING):
            self.ledger.launch_failed(box, RuntimeError("no"), self.now, DELAYS, hopeless=hopeless)

    def acquire(self, kind: str = "a", slots: int = 1) -> int:
        return self.ledger.enqueue(kind, self.now, slots=slots).id

    def release(self, waiter: int, *, clean: bool = True) -> None:
        for box_id in self.held.pop(waiter):
            if box_id in self.ledger.boxes:
                self.ledger.give_back(self.ledger.boxes[box_id], self.now, clean=clean)

    def run_dry(self) -> None:
        """Everything succeeds from here on and every holder gives back, until nobody waits."""
        for _ in range(300):
            wake_at = self.settle()
            moving = self.phase(Phase.LAUNCHING) + self.phase(Phase.CLOSING)
            if not self.ledger.waiters and not self.held and not moving:
                return
            self.launch_all()
            self.close_all()
            for box in self.phase(Phase.LOST):
                self.ledger.remove(box)
            for box in self.ledger.boxes.values():
                box.suspect = False
            for waiter in list(self.held):
                self.release(waiter)
            if self.ledger.waiters and not self.phase(Phase.LAUNCHING):
                self.now = min(max(self.now, wake_at), self.now + 60.0)
        raise AssertionError(f"waiters starve: {self.ledger}")


def test_slots_are_lent_in_order_of_arrival() -> None:
    world = World(config(1, per_box=1))
    waiters = [world.acquire() for _ in range(4)]
    world.run_dry()
    assert [waiter.id for waiter in world.lent] == waiters


def test_a_gang_gets_all_or_nothing_and_is_not_overtaken() -> None:
    world = World(config(1, per_box=2))
    first = world.acquire()
    world.settle()
    world.launch_all()
    world.settle()
    gang = world.acquire(slots=2)
    late = world.acquire()
    world.settle()
    assert [waiter.id for waiter in world.lent] == [first]
    world.release(first)
    world.settle()
    assert [waiter.id for waiter in world.lent] == [first, gang]
    world.release(gang)
    world.settle()
    assert [waiter.id for waiter in world.lent] == [first, gang, late]


def test_an_idle_box_of_another_kind_is_evicted_only_when_the_cap_is_hit() -> None:
    world = World(config(2))
    first = world.acquire("a")
    world.run_dry()
    assert first not in world.held
    world.acquire("b")
    world.settle()
    assert world.closed == []
    world.launch_all()
    world.settle()
    world.acquire("c")
    world.settle()
    assert [reason for _, reason in world.closed] == ["evicted"]
    assert world.phase(Phase.LAUNCHING) == []
    world.close_all()
    world.settle()
    assert [box.kind for box in world.phase(Phase.LAUNCHING)] == ["c"]


def test_a_busy_box_of_another_kind_is_drained_for_an_earlier_waiter() -> None:
    world = World(config(1))
    first = world.acquire("a")
    world.settle()
    world.launch_all()
    world.settle()
    other = world.acquire("b")
    late = world.acquire("a")
    world.settle()
    assert late not in world.held, "a free slot of the box that must go was lent to a later waiter"
    world.release(first)
    world.settle()
    world.close_all()
    world.settle()
    world.launch_all()
    world.settle()
    assert other in world.held


def test_launch_failures_back_off_and_reach_the_waiter() -> None:
    world = World(config())
    waiter = world.acquire()
    tries = []
    for _ in range(10):
        wake_at = world.settle()
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
    wake_at = world.settle()
    assert later not in world.failed, "a waiter fails only for launches since it came"
    assert wake_at == tries[-1] + 2.0


def test_a_hopeless_launch_is_not_tried_again() -> None:
    world = World(config())
    waiter = world.acquire()
    world.settle()
    world.fail_all(hopeless=True)
    world.settle()
    assert world.failed == [waiter]


def test_launches_that_fail_together_count_once() -> None:
    world = World(config(4, per_box=1))
    for _ in range(4):
        world.acquire()
    world.settle()
    assert len(world.phase(Phase.LAUNCHING)) == 4
    world.fail_all()
    assert world.ledger.record("a").failures == 1


def test_a_waiter_that_living_boxes_can_serve_does_not_fail() -> None:
    world = World(config(2, per_box=1))
    first = world.acquire()
    world.settle()
    world.launch_all()
    world.settle()
    second = world.acquire()
    world.settle()
    world.fail_all(hopeless=True)
    world.settle()
    assert world.failed == []
    world.release(first)
    world.settle()
    assert second in world.held


def test_a_quarantined_slot_dooms_its_box_which_goes_with_its_last_holder() -> None:
    world = World(config(1))
    one, two = world.acquire(), world.acquire()
    world.settle()
    world.launch_all()
    world.settle()
    world.release(one, clean=False)
    three = world.acquire()
    world.settle()
    assert three not in world.held
    assert world.closed == []
    world.release(two)
    world.settle()
    assert [reason for _, reason in world.closed] == ["quarantined"]
    world.close_all()
    world.settle()
    world.launch_all()
    world.settle()
    assert three in world.held


def test_idle_boxes_go_after_the_idle_time_down_to_the_minimum() -> None:
    world = World(config(3, minimum=1))
    world.acquire(slots=6)
    world.run_dry()
    assert len(world.ledger.boxes) == 3
    world.now = world.settle()
    world.settle()
    assert [reason for _, reason in world.closed] == ["idle", "idle"]
    world.close_all()
    assert world.settle() == math.inf
    assert len(world.phase(Phase.READY)) == 1


def test_an_old_box_is_replaced_when_it_is_free() -> None:
    world = World(config(1, lifetime_s=50.0))
    holder = world.acquire()
    world.settle()
    world.launch_all()
    world.settle()
    world.now += 51
    late = world.acquire()
    world.settle()
    assert late not in world.held
    world.release(holder)
    world.settle()
    assert [reason for _, reason in world.closed] == ["lifetime"]


def test_prewarming_is_done_when_the_boxes_are_ready() -> None:
    world = World(config(3))
    waiter = world.ledger.enqueue("a", world.now, slots=0, boxes=2)
    world.settle()
    assert len(world.phase(Phase.LAUNCHING)) == 2
    assert world.warmed == []
    world.launch_all()
    world.settle()
    assert world.warmed == [waiter.id]


def test_launches_are_paced() -> None:
    world = World(PlanConfig(10, {"a": KindPlan(1, 0, None, None)}, launch_interval_s=0.25, launch_concurrency=2))
    for _ in range(4):
        world.acquire()
    assert world.settle() == 100.25
    assert len(world.phase(Phase.LAUNCHING)) == 1
    world.now = 100.25
    assert world.settle() == math.inf
    assert len(world.phase(Phase.LAUNCHING)) == 2
    world.launch_all()
    world.now = 100.5
    world.settle()
    assert len(world.phase(Phase.LAUNCHING)) == 1


def test_the_work_of_a_plan_grows_no_faster_than_the_line() -> None:
    def work(waiting: int) -> int:
        world = World(config(16))
        for number in range(waiting):
            world.acquire("ab"[number % 2])
        world.settle()
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            plan(world.ledger, world.config, world.now)
        finally:
            sys.setprofile(None)
        return calls

    assert 0 < work(1000) < 3 * work(500)


KINDS = st.sampled_from(["a", "b", "c"])


class History(RuleBasedStateMachine):
    """Anything may happen in any order; the promises hold after each step, and everybody is served in the end."""

    @property
    def cap(self) -> int:
        return 3

    def __init__(self) -> None:
        super().__init__()
        self.world = World(PlanConfig(self.cap, kinds(2, 1, 500.0), launch_interval_s=0.05, launch_concurrency=2))
        self.world.settle()

    def pick(self, items: list[BoxEntry], index: int) -> BoxEntry | None:
        return items[index % len(items)] if items else None

    @rule(kind=KINDS, slots=st.integers(1, 9))
    def acquire(self, kind: str, slots: int) -> None:
        most = {"a": 6, "b": 9, "c": 1}[kind]
        self.world.acquire(kind, min(slots, most))

    @rule(kind=KINDS)
    def prewarm(self, kind: str) -> None:
        self.world.ledger.enqueue(kind, self.world.now, slots=0, boxes=1)

    @rule(index=st.integers(0, 50))
    def give_up(self, index: int) -> None:
        waiters = list(self.world.ledger.waiters)
        if waiters:
            del self.world.ledger.waiters[waiters[index % len(waiters)]]

    @rule(index=st.integers(0, 50), clean=st.booleans())
    def release(self, index: int, clean: bool) -> None:
        if self.world.held:
            self.world.release(list(self.world.held)[index % len(self.world.held)], clean=clean)

    @rule(index=st.integers(0, 50))
    def hand_out_fails(self, index: int) -> None:
        if self.world.held:
            waiter_id = list(self.world.held)[index % len(self.world.held)]
            waiter = next(waiter for waiter in self.world.lent if waiter.id == waiter_id)
            for box_id in self.world.held.pop(waiter_id):
                if box_id in self.world.ledger.boxes:
                    box = self.world.ledger.boxes[box_id]
                    self.world.ledger.give_back(box, self.world.now, clean=True)
                    box.suspect = True
            self.world.lent.remove(waiter)
            self.world.ledger.requeue(waiter)

    @rule()
    def answers_again(self) -> None:
        for box in self.world.ledger.boxes.values():
            box.suspect = False

    @rule(index=st.integers(0, 50))
    def launch_succeeds(self, index: int) -> None:
        if box := self.pick(self.world.phase(Phase.LAUNCHING), index):
            self.world.ledger.launched(box, self.world.now)

    @rule(index=st.integers(0, 50), hopeless=st.booleans())
    def launch_fails(self, index: int, hopeless: bool) -> None:
        if box := self.pick(self.world.phase(Phase.LAUNCHING), index):
            self.world.ledger.launch_failed(box, RuntimeError("no"), self.world.now, DELAYS, hopeless=hopeless)

    @rule(index=st.integers(0, 50))
    def dies(self, index: int) -> None:
        if box := self.pick(self.world.phase(Phase.READY) + self.world.phase(Phase.LOST), index):
            self.world.ledger.remove(box)

    @rule(index=st.integers(0, 50))
    def is_lost(self, index: int) -> None:
        if box := self.pick(self.world.phase(Phase.READY), index):
            box.phase = Phase.LOST

    @rule(index=st.integers(0, 50))
    def is_closed(self, index: int) -> None:
        if box := self.pick(self.world.phase(Phase.CLOSING), index):
            self.world.ledger.remove(box)

    @rule(seconds=st.sampled_from([0.01, 0.6, 11.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def plans(self) -> None:
        before = len(self.world.lent)
        waiting = list(self.world.ledger.waiters.values())
        self.world.settle()
        served = {waiter.id for waiter in self.world.lent[before:]}
        for kind in "abc":
            line = [waiter for waiter in waiting if waiter.kind == kind and not waiter.boxes]
            line = [waiter for waiter in line if waiter.id not in self.world.failed]
            taken = [waiter.id in served for waiter in line]
            assert taken == sorted(taken, reverse=True), "a later waiter was served before an earlier one of its kind"

    @invariant()
    def never_above_the_cap(self) -> None:
        boxes = self.world.ledger.boxes.values()
        assert len(boxes) <= self.cap
        assert sum(box.kind == "c" for box in boxes) <= 1

    @invariant()
    def slots_add_up(self) -> None:
        for box in self.world.ledger.boxes.values():
            assert min(box.free, box.lent, box.quarantined) >= 0
            if box.phase is Phase.READY:
                assert box.free + box.lent + box.quarantined == box.slots
            held = sum(box_id == box.id for boxes in self.world.held.values() for box_id in boxes)
            assert held == box.lent

    def teardown(self) -> None:
        self.world.run_dry()
        world = self.world
        for _ in range(20):
            wake_at = world.settle()
            world.launch_all()
            world.close_all()
            if world.settle() == math.inf and not world.phase(Phase.CLOSING) and not world.phase(Phase.LAUNCHING):
                break
            world.now = min(max(wake_at, world.now + 0.1), world.now + 11.0)
            if world.now > 10_000_000:
                break
        idle = {kind: sum(box.kind == kind for box in world.phase(Phase.READY)) for kind in "abc"}
        assert idle["a"] >= 1, "below the minimum when idle"
        super().teardown()


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
