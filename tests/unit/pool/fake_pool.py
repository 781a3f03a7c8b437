"""A pool without sandboxes: carries out what the planner decides, as the pool does."""

from dataclasses import dataclass

from hermes_exec.pool.decisions import Close, Fail, Grant, HandOver, Launch, PlanConfig, TemplateSize
from hermes_exec.pool.plan import plan
from hermes_exec.pool.state import Phase, PoolState, SandboxRecord, SlotState, Waiter

DELAYS = (0.5, 30.0)
SMALL, LARGE = 1, 4
"""Slots of the sandboxes of kind `e`, on two hosts of which one has small sandboxes and one large ones."""


def config(
    max_sandboxes: int = 2, *, per_sandbox: int = 2, minimum: int = 0, lifetime_s: float | None = None
) -> PlanConfig:
    return PlanConfig(max_sandboxes, templates(per_sandbox, minimum, lifetime_s))


def templates(per_sandbox: int, minimum: int, lifetime_s: float | None) -> dict[str, TemplateSize]:
    return {
        "a": TemplateSize(per_sandbox, minimum, None, 10.0, lifetime_s),
        "b": TemplateSize(3, 0, None, 10.0, lifetime_s),
        "c": TemplateSize(1, 0, 1, 10.0, lifetime_s),
        "d": TemplateSize(1, 0, None, 10.0, lifetime_s, used_once=True),
        "e": TemplateSize(2, 0, None, 10.0, lifetime_s, largest=LARGE),
        "f": TemplateSize(4, 0, None, 10.0, lifetime_s, spread=2),
    }


@dataclass
class PlannedSlot:
    """A slot without a sandbox."""

    state: SlotState = SlotState.FREE


class FakePool:
    """Carries a plan out as the pool does, without a pool."""

    def __init__(self, config: PlanConfig) -> None:
        self.config = config
        self.state = PoolState()
        self.now = 100.0
        self.held: dict[int, list[int]] = {}
        self.failed: list[int] = []
        self.served: list[Waiter] = []
        self.warmed: list[int] = []
        self.closed: list[tuple[int, str]] = []
        self.handed_over: list[int] = []
        self.large_host_away = False

    def reconcile(self) -> float:
        """Carry out plans until one has nothing to do; its time to wake."""
        for _ in range(200):
            decided = plan(self.state, self.config, self.now)
            if not decided.actions:
                assert decided.wake_at > self.now
                return decided.wake_at
            for action in decided.actions:
                self.carry_out(action)
        raise AssertionError("the planner does not come to rest")

    def carry_out(self, action: object) -> None:
        match action:
            case Launch(template):
                self.state.begin_launch(template, self.config.templates[template].slots_per_sandbox, self.now)
            case Grant(waiter, shares):
                for sandbox_id, count in shares.items():
                    sandbox = self.state.sandboxes[sandbox_id]
                    copies = self.state.copies.get(waiter.checkpoint or "", [])
                    assert sandbox.available or sandbox.checkpoints or sandbox_id in copies
                    assert sandbox.phase is Phase.READY
                    assert not sandbox.suspect
                    if waiter.checkpoint is not None:
                        assert any(self.state.sandboxes[each].phase is Phase.READY for each in copies)
                    assert 0 < count <= sandbox.free
                    assert sandbox.template == waiter.template
                del self.state.waiters[waiter.id]
                for sandbox_id, count in shares.items():
                    self.change(sandbox_id, SlotState.FREE, SlotState.HELD, count)
                assert sum(shares.values()) == waiter.slots or waiter.sandboxes
                if waiter.sandboxes:
                    self.warmed.append(waiter.id)
                else:
                    self.served.append(waiter)
                    self.held[waiter.id] = [sandbox_id for sandbox_id, count in shares.items() for _ in range(count)]
            case Close(sandbox_id, reason):
                sandbox = self.state.sandboxes[sandbox_id]
                assert sandbox.in_use == sandbox.checkpoints == 0
                assert sandbox.phase is Phase.READY
                sandbox.phase = Phase.CLOSING
                self.closed.append((sandbox_id, reason))
            case HandOver(sandbox_id):
                sandbox = self.state.sandboxes[sandbox_id]
                assert sandbox.checkpoints
                sandbox.handing_over = True
                self.handed_over.append(sandbox_id)
            case Fail(waiter):
                del self.state.waiters[waiter.id]
                self.failed.append(waiter.id)
            case _:
                raise AssertionError(action)

    def phase(self, phase: Phase) -> list[SandboxRecord]:
        return [sandbox for sandbox in self.state.sandboxes.values() if sandbox.phase is phase]

    def complete_launch(self, sandbox: SandboxRecord) -> None:
        """A launch succeeds; a sandbox of `e` is on the host that has fewer, the one with large sandboxes first."""
        if sandbox.template == "e":
            there = [other.size for other in self.state.of_template("e") if other.phase is not Phase.LAUNCHING]
            large = there.count(LARGE) <= there.count(SMALL) and not self.large_host_away
            sandbox.size = LARGE if large else SMALL
        self.state.complete_launch(sandbox, [PlannedSlot() for _ in range(sandbox.size)], self.now)

    def launch_all(self) -> None:
        for sandbox in self.phase(Phase.LAUNCHING):
            self.complete_launch(sandbox)

    def close_all(self) -> None:
        for sandbox in self.phase(Phase.CLOSING):
            self.state.remove(sandbox)

    def fail_all(self, *, hopeless: bool = False, away: bool = False) -> None:
        for sandbox in self.phase(Phase.LAUNCHING):
            self.state.fail_launch(sandbox, RuntimeError("no"), self.now, DELAYS, hopeless=hopeless, away=away)

    def acquire(self, template: str = "a", slots: int = 1) -> int:
        return self.state.enqueue(template, self.now, slots=slots).id

    def fork(self, sandbox: SandboxRecord, slots: int = 1) -> int:
        """Request slots that start from a checkpoint of this sandbox."""
        checkpoint = f"of-{sandbox.id}"
        self.state.copies.setdefault(checkpoint, [sandbox.id])
        return self.state.enqueue(sandbox.template, self.now, slots=slots, checkpoint=checkpoint).id

    def release(self, waiter: int, *, clean: bool = True) -> None:
        for sandbox_id in self.held.pop(waiter):
            if sandbox_id in self.state.sandboxes:
                sandbox = self.state.sandboxes[sandbox_id]
                once = self.config.templates[sandbox.template].used_once
                self.give_back(sandbox, clean=clean or once, drain=once)

    def give_back(self, sandbox: SandboxRecord, *, clean: bool = True, drain: bool = False) -> None:
        """A slot comes back after its reset; its holder does not matter to the planner."""
        self.change(sandbox.id, SlotState.HELD, SlotState.FREE if clean else SlotState.QUARANTINED, 1)
        self.state.record_return(sandbox, self.now, drain=drain)

    def change(self, sandbox_id: int, before: SlotState, after: SlotState, count: int) -> None:
        """So many slots of a sandbox change their state."""
        slots = [slot for slot in self.state.sandboxes[sandbox_id].slots if slot.state is before]
        for slot in slots[:count]:
            slot.state = after

    def run_dry(self) -> None:
        """Everything succeeds from here on and every holder gives back, until nobody waits."""
        self.large_host_away = False
        for _ in range(300):
            wake_at = self.reconcile()
            moving = self.phase(Phase.LAUNCHING) + self.phase(Phase.CLOSING) + self.phase(Phase.LOST)
            if not self.state.waiters and not self.held and not moving:
                return
            self.launch_all()
            self.close_all()
            for sandbox in self.phase(Phase.LOST):
                self.state.remove(sandbox)
            forks = [waiter for waiter in self.state.waiters.values() if waiter.checkpoint is not None]
            for sandbox in self.state.sandboxes.values():
                sandbox.suspect = False
                if not forks or sandbox.handing_over:
                    sandbox.checkpoints = 0
                    sandbox.handing_over = False
            for waiter in list(self.held):
                self.release(waiter)
            if self.state.waiters and not self.phase(Phase.LAUNCHING):
                self.now = min(max(self.now, wake_at), self.now + 60.0)
        raise AssertionError(f"waiters starve: {self.state}")
