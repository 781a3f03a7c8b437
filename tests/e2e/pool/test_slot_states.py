"""The states of a pool's slots over random histories on a real sandbox, against a model of what callers see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hermes_exec import AcquireTimeout, KillReceipt, SandboxDied, SandboxPool, SlotClosed
from hermes_exec.blocking import Slot
from hermes_exec.pool.sandbox import PooledSlot
from hermes_exec.pool.state import SlotState

SLOTS = 3
FREE, PREPARING, HELD, RESETTING, QUARANTINED = SlotState
LEGAL = {
    (FREE, PREPARING),
    (PREPARING, HELD),
    (PREPARING, FREE),
    (PREPARING, RESETTING),
    (HELD, RESETTING),
    (RESETTING, FREE),
    (RESETTING, QUARANTINED),
}


@contextmanager
def changes_seen() -> Iterator[list[tuple[SlotState, SlotState]]]:
    """Every change of a slot's state meanwhile."""
    seen: list[tuple[SlotState, SlotState]] = []
    stored: Any = vars(PooledSlot)["state"]

    def change(slot: PooledSlot, state: SlotState) -> None:
        try:
            seen.append((stored.__get__(slot), state))
        except AttributeError:
            assert state is FREE  # of a slot that is being made
        stored.__set__(slot, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PooledSlot, "state", property(stored.__get__, change))
        yield seen


class Slots(RuleBasedStateMachine):
    """One sandbox of three slots. Whatever callers do, each slot is in the state that they can tell from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.changes = self.stack.enter_context(changes_seen())
        self.entered = SandboxPool("local", slots_per_sandbox=SLOTS, max_sandboxes=1, acquire_timeout_s=30)
        self.pool = self.stack.enter_context(self.entered)
        self.held: list[Slot] = []
        self.spoiled: list[Slot] = []
        """Those of `held` that cannot be proven clean."""
        self.quarantined = 0

    @property
    def free(self) -> int:
        return SLOTS - len(self.held) - self.quarantined

    def pick(self, index: int) -> Slot:
        return self.held[index % len(self.held)]

    @rule(count=st.integers(1, SLOTS))
    def acquire(self, count: int) -> None:
        if self.quarantined and not self.held:
            # The sandbox is replaced when its last slot is released. None of its slots is acquired before.
            self.quarantined = 0
        if self.quarantined or count > self.free:
            with pytest.raises(AcquireTimeout), self.pool.slots(count, timeout_s=0.02):
                pass
            return
        slots = [self.pool.acquire() for _ in range(count)]
        assert [slot.files.list() for slot in slots] == [[]] * count
        for slot in slots:
            slot.files.write_text("mine", slot.id)
        self.held += slots

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 9))
    def use(self, index: int) -> None:
        slot = self.pick(index)
        assert slot.run("cat mine").stdout == slot.id

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 9))
    def reset(self, index: int) -> None:
        slot = self.pick(index)
        slot.reset()
        assert slot.files.list() == []
        slot.files.write_text("mine", slot.id)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 9))
    def spoil(self, index: int) -> None:
        """A kill leaves processes behind, which nothing but a receipt can tell."""
        slot = self.pick(index)
        slot.wrapped._scope.check_receipt(KillReceipt(found=1, killed=0, left=1, rounds=1, handles=(), duration_s=0.0))
        if slot not in self.spoiled:
            self.spoiled.append(slot)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 9), again=st.booleans())
    def release(self, index: int, again: bool) -> None:
        slot = self.pick(index)
        self.pool.release(slot)
        if again:
            self.pool.release(slot)
        self.held.remove(slot)
        if slot in self.spoiled:
            self.spoiled.remove(slot)
            self.quarantined += 1
        with pytest.raises(SlotClosed):
            slot.run("true")

    @precondition(lambda self: self.held)
    @rule()
    def dies(self) -> None:
        assert self.entered._running is not None
        (sandbox,) = self.entered._running.fleet.sandboxes.values()
        sandbox.handle.destroy_now()
        for slot in self.held:
            with pytest.raises(SandboxDied):
                slot.run("true")
            self.pool.release(slot)
        self.held, self.spoiled, self.quarantined = [], [], 0

    @invariant()
    def only_legal_changes(self) -> None:
        assert set(self.changes) <= LEGAL

    @invariant()
    def as_callers_see_it(self) -> None:
        stats = self.pool.stats()
        assert stats.acquired - stats.released == len(self.held)
        if self.held:
            assert (stats.slots_in_use, stats.slots_quarantined) == (len(self.held), self.quarantined)
            assert stats.slots_free == self.free
        assert stats.waiting == 0

    def teardown(self) -> None:
        self.stack.close()
        super().teardown()


TestSlots = Slots.TestCase
TestSlots.settings = settings(
    max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
