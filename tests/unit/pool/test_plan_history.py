"""The planner over random histories, in which its promises must hold."""

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hermes_exec.pool.plan import PlanConfig
from hermes_exec.pool.state import Phase, SandboxRecord
from tests.unit.pool.world import DELAYS, LARGE, SMALL, World, templates

KINDS = st.sampled_from(["a", "b", "c", "d", "e"])


class History(RuleBasedStateMachine):
    """Anything may happen in any order; the promises hold after each step, and everybody is served in the end."""

    @property
    def cap(self) -> int:
        return 3

    def __init__(self) -> None:
        super().__init__()
        self.world = World(PlanConfig(self.cap, templates(2, 1, 500.0), launches_at_once=2))
        self.world.reconcile()

    def pick(self, items: list[SandboxRecord], index: int) -> SandboxRecord | None:
        return items[index % len(items)] if items else None

    @rule(template=KINDS, slots=st.integers(1, 9))
    def acquire(self, template: str, slots: int) -> None:
        most = {"a": 6, "b": 9, "c": 1, "d": 3, "e": LARGE + SMALL + LARGE}[template]
        self.world.acquire(template, min(slots, most))

    @rule(template=KINDS)
    def prewarm(self, template: str) -> None:
        self.world.state.enqueue(template, self.world.now, slots=0, sandboxes=1)

    @rule(index=st.integers(0, 50))
    def give_up(self, index: int) -> None:
        waiters = list(self.world.state.waiters)
        if waiters:
            del self.world.state.waiters[waiters[index % len(waiters)]]

    @rule(index=st.integers(0, 50), clean=st.booleans())
    def release(self, index: int, clean: bool) -> None:
        if self.world.held:
            self.world.release(list(self.world.held)[index % len(self.world.held)], clean=clean)

    @rule(index=st.integers(0, 50))
    def hand_out_fails(self, index: int) -> None:
        if self.world.held:
            waiter_id = list(self.world.held)[index % len(self.world.held)]
            waiter = next(waiter for waiter in self.world.lent if waiter.id == waiter_id)
            for sandbox_id in self.world.held.pop(waiter_id):
                if sandbox_id in self.world.state.sandboxes:
                    sandbox = self.world.state.sandboxes[sandbox_id]
                    self.world.give_back(sandbox)
                    sandbox.suspect = True
            self.world.lent.remove(waiter)
            self.world.state.requeue(waiter)

    @rule()
    def answers_again(self) -> None:
        for sandbox in self.world.state.sandboxes.values():
            sandbox.suspect = False

    @rule(index=st.integers(0, 50))
    def launch_succeeds(self, index: int) -> None:
        if sandbox := self.pick(self.world.phase(Phase.LAUNCHING), index):
            self.world.launched(sandbox)

    @rule(away=st.booleans())
    def a_host_goes_or_comes(self, away: bool) -> None:
        self.world.large_host_away = away

    @rule(index=st.integers(0, 50), why=st.sampled_from([{}, {"hopeless": True}, {"away": True}]))
    def launch_fails(self, index: int, why: dict[str, bool]) -> None:
        if sandbox := self.pick(self.world.phase(Phase.LAUNCHING), index):
            self.world.state.launch_failed(sandbox, RuntimeError("no"), self.world.now, DELAYS, **why)

    @rule(index=st.integers(0, 50))
    def dies(self, index: int) -> None:
        if sandbox := self.pick(self.world.phase(Phase.READY) + self.world.phase(Phase.LOST), index):
            self.world.state.remove(sandbox)

    @rule(index=st.integers(0, 50))
    def is_lost(self, index: int) -> None:
        if sandbox := self.pick(self.world.phase(Phase.READY), index):
            sandbox.phase = Phase.LOST

    @rule(index=st.integers(0, 50))
    def is_closed(self, index: int) -> None:
        if sandbox := self.pick(self.world.phase(Phase.CLOSING), index):
            self.world.state.remove(sandbox)

    @rule(seconds=st.sampled_from([0.01, 0.6, 11.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def plans(self) -> None:
        before = len(self.world.lent)
        waiting = list(self.world.state.waiters.values())
        self.world.reconcile()
        served = {waiter.id for waiter in self.world.lent[before:]}
        for template in "abcde":
            line = [waiter for waiter in waiting if waiter.template == template and not waiter.sandboxes]
            line = [waiter for waiter in line if waiter.id not in self.world.failed]
            taken = [waiter.id in served for waiter in line]
            assert taken == sorted(taken, reverse=True), "a later waiter was served before an earlier one of its kind"

    @invariant()
    def never_above_the_cap(self) -> None:
        sandboxes = self.world.state.sandboxes.values()
        assert len(sandboxes) <= self.cap
        assert sum(sandbox.template == "c" for sandbox in sandboxes) <= 1

    @invariant()
    def slots_add_up(self) -> None:
        for sandbox in self.world.state.sandboxes.values():
            assert min(sandbox.free, sandbox.in_use, sandbox.quarantined) >= 0
            if sandbox.phase is Phase.READY:
                assert sandbox.free + sandbox.in_use + sandbox.quarantined == sandbox.size == len(sandbox.slots)
            held = sum(sandbox_id == sandbox.id for sandboxes in self.world.held.values() for sandbox_id in sandboxes)
            assert held == sandbox.in_use

    def teardown(self) -> None:
        self.world.run_dry()
        world = self.world
        for _ in range(20):
            wake_at = world.reconcile()
            world.launch_all()
            world.close_all()
            if world.reconcile() == math.inf and not world.phase(Phase.CLOSING) and not world.phase(Phase.LAUNCHING):
                break
            world.now = min(max(wake_at, world.now + 0.1), world.now + 11.0)
            if world.now > 10_000_000:
                break
        idle = {
            template: sum(sandbox.template == template for sandbox in world.phase(Phase.READY)) for template in "abcd"
        }
        assert idle["a"] >= 1, "below the minimum when idle"
        super().teardown()


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
