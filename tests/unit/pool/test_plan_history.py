"""The planner over random histories, in which its promises must hold."""

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hermes_exec.pool.decisions import PlanConfig
from hermes_exec.pool.state import Phase, SandboxRecord
from tests.unit.pool.fake_pool import DELAYS, LARGE, SMALL, FakePool, templates

KINDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])


class History(RuleBasedStateMachine):
    """Anything may happen in any order; the promises hold after each step, and everybody is served in the end."""

    @property
    def cap(self) -> int:
        return 3

    def __init__(self) -> None:
        super().__init__()
        self.pool = FakePool(PlanConfig(self.cap, templates(2, 1, 500.0), launches_at_once=2))
        self.pool.reconcile()

    def pick(self, items: list[SandboxRecord], index: int) -> SandboxRecord | None:
        return items[index % len(items)] if items else None

    @rule(template=KINDS, slots=st.integers(1, 9))
    def acquire(self, template: str, slots: int) -> None:
        most = {"a": 6, "b": 9, "c": 1, "d": 3, "e": LARGE + SMALL + LARGE, "f": 12}[template]
        self.pool.acquire(template, min(slots, most))

    @rule(template=KINDS)
    def prewarm(self, template: str) -> None:
        self.pool.state.enqueue(template, self.pool.now, slots=0, sandboxes=1)

    @rule(index=st.integers(0, 50))
    def checkpoint(self, index: int) -> None:
        held = [sandbox for sandbox in self.pool.phase(Phase.READY) if sandbox.in_use and sandbox.size > 1]
        if sandbox := self.pick(held, index):
            sandbox.checkpoints += 1

    @rule(index=st.integers(0, 50))
    def drop_checkpoint(self, index: int) -> None:
        copies = [self.pool.state.copies.get(each.checkpoint or "", []) for each in self.pool.state.waiters.values()]
        expected = {sandbox_id for sandboxes in copies for sandbox_id in sandboxes}
        droppable = [
            sandbox
            for sandbox in self.pool.state.sandboxes.values()
            if sandbox.checkpoints and sandbox.id not in expected
        ]
        if sandbox := self.pick(droppable, index):
            sandbox.checkpoints -= 1

    @rule(index=st.integers(0, 50), slots=st.integers(1, 3))
    def fork(self, index: int, slots: int) -> None:
        sources = [sandbox for sandbox in self.pool.state.sandboxes.values() if sandbox.checkpoints]
        if sandbox := self.pick(sources, index):
            self.pool.fork(sandbox, min(slots, sandbox.size))

    @rule(index=st.integers(0, 50))
    def give_up(self, index: int) -> None:
        waiters = list(self.pool.state.waiters)
        if waiters:
            del self.pool.state.waiters[waiters[index % len(waiters)]]

    @rule(index=st.integers(0, 50), clean=st.booleans())
    def release(self, index: int, clean: bool) -> None:
        if self.pool.held:
            self.pool.release(list(self.pool.held)[index % len(self.pool.held)], clean=clean)

    @rule(index=st.integers(0, 50))
    def hand_out_fails(self, index: int) -> None:
        if self.pool.held:
            waiter_id = list(self.pool.held)[index % len(self.pool.held)]
            waiter = next(waiter for waiter in self.pool.served if waiter.id == waiter_id)
            for sandbox_id in self.pool.held.pop(waiter_id):
                if sandbox_id in self.pool.state.sandboxes:
                    sandbox = self.pool.state.sandboxes[sandbox_id]
                    self.pool.give_back(sandbox)
                    sandbox.suspect = True
            self.pool.served.remove(waiter)
            self.pool.state.requeue(waiter)

    @rule()
    def answers_again(self) -> None:
        for sandbox in self.pool.state.sandboxes.values():
            sandbox.suspect = False

    @rule(index=st.integers(0, 50))
    def launch_succeeds(self, index: int) -> None:
        if sandbox := self.pick(self.pool.phase(Phase.LAUNCHING), index):
            self.pool.complete_launch(sandbox)

    @rule(away=st.booleans())
    def a_host_goes_or_comes(self, away: bool) -> None:
        self.pool.large_host_away = away

    @rule(index=st.integers(0, 50), why=st.sampled_from([{}, {"hopeless": True}, {"away": True}]))
    def launch_fails(self, index: int, why: dict[str, bool]) -> None:
        if sandbox := self.pick(self.pool.phase(Phase.LAUNCHING), index):
            self.pool.state.fail_launch(sandbox, RuntimeError("no"), self.pool.now, DELAYS, **why)

    @rule(index=st.integers(0, 50))
    def dies(self, index: int) -> None:
        if sandbox := self.pick(self.pool.phase(Phase.READY) + self.pool.phase(Phase.LOST), index):
            self.pool.state.remove(sandbox)

    @rule(index=st.integers(0, 50))
    def is_lost(self, index: int) -> None:
        if sandbox := self.pick(self.pool.phase(Phase.READY), index):
            sandbox.phase = Phase.LOST

    @rule(index=st.integers(0, 50))
    def is_closed(self, index: int) -> None:
        if sandbox := self.pick(self.pool.phase(Phase.CLOSING), index):
            self.pool.state.remove(sandbox)

    @rule(seconds=st.sampled_from([0.01, 0.6, 11.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.pool.now += seconds

    @rule()
    def plans(self) -> None:
        before = len(self.pool.served)
        waiting = list(self.pool.state.waiters.values())
        self.pool.reconcile()
        served = {waiter.id for waiter in self.pool.served[before:]}
        for template in "abcdef":
            line = [waiter for waiter in waiting if waiter.template == template and not waiter.sandboxes]
            line = [waiter for waiter in line if waiter.id not in self.pool.failed and waiter.checkpoint is None]
            taken = [waiter.id in served for waiter in line]
            assert taken == sorted(taken, reverse=True), "a later waiter was served before an earlier one of its kind"

    @invariant()
    def never_above_the_cap(self) -> None:
        sandboxes = self.pool.state.sandboxes.values()
        assert len(sandboxes) <= self.cap
        assert sum(sandbox.template == "c" for sandbox in sandboxes) <= 1

    @invariant()
    def slots_add_up(self) -> None:
        for sandbox in self.pool.state.sandboxes.values():
            assert min(sandbox.free, sandbox.in_use, sandbox.quarantined) >= 0
            if sandbox.phase is Phase.READY:
                assert sandbox.free + sandbox.in_use + sandbox.quarantined == sandbox.size == len(sandbox.slots)
            held = sum(sandbox_id == sandbox.id for sandboxes in self.pool.held.values() for sandbox_id in sandboxes)
            assert held == sandbox.in_use

    def teardown(self) -> None:
        self.pool.run_dry()
        pool = self.pool
        for _ in range(20):
            wake_at = pool.reconcile()
            pool.launch_all()
            pool.close_all()
            if pool.reconcile() == math.inf and not pool.phase(Phase.CLOSING) and not pool.phase(Phase.LAUNCHING):
                break
            pool.now = min(max(wake_at, pool.now + 0.1), pool.now + 11.0)
            if pool.now > 10_000_000:
                break
        idle = {
            template: sum(sandbox.template == template for sandbox in pool.phase(Phase.READY)) for template in "abcdef"
        }
        assert idle["a"] >= 1, "below the minimum when idle"
        super().teardown()


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
