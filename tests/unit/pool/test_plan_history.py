"""The planner over random histories, in which its promises must hold."""

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hermes_exec.pool.plan import PlanConfig
from hermes_exec.pool.state import BoxEntry, Phase
from tests.unit.pool.world import DELAYS, World, kinds

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
