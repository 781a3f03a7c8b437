"""What a pool has and who waits: sandboxes, the states of their slots, waiters. Plain data, no I/O and no policy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Phase(Enum):
    """Where a sandbox is in its life. A sandbox that died is no longer in the state."""

    LAUNCHING = "launching"
    READY = "ready"
    LOST = "lost"
    """Out of reach, and not known to be dead: it counts, it is not lent, it is not destroyed."""
    CLOSING = "closing"


class SlotState(Enum):
    """Where a slot is between two holders."""

    FREE = "free"
    PREPARING = "preparing"
    """It is made ready for a waiter."""
    HELD = "held"
    """A holder has it, also while it is reset for the same holder."""
    RESETTING = "resetting"
    QUARANTINED = "quarantined"
    """It could not be proven clean, and nobody gets it any more."""


class HasState(Protocol):
    """What the policy knows of a slot."""

    state: SlotState


@dataclass(slots=True)
class SandboxRecord:
    """One sandbox. `size` is the number of its slots, which are there once it is ready."""

    id: int
    template: str
    size: int
    launched_at: float
    phase: Phase = Phase.LAUNCHING
    slots: Sequence[HasState] = ()
    draining: bool = False
    """It lends no more and is closed when its last holder has left."""
    suspect: bool = False
    """It did not answer at the last hand-out, or its disk was nearly full; it lends again when that is over."""
    idle_since: float = 0.0
    ends_at: float = math.inf
    """When its engine ends it."""

    def count(self, state: SlotState) -> int:
        """How many of its slots are in this state."""
        return [slot.state for slot in self.slots].count(state)

    @property
    def free(self) -> int:
        """How many of its slots can be acquired."""
        return self.count(SlotState.FREE)

    @property
    def quarantined(self) -> int:
        """How many of its slots nobody gets any more."""
        return self.count(SlotState.QUARANTINED)

    @property
    def in_use(self) -> int:
        """How many of its slots are prepared, held or reset."""
        return len(self.slots) - self.free - self.quarantined

    @property
    def healthy(self) -> bool:
        """Whether its slots come back to the pool."""
        return self.phase is Phase.READY and not self.draining

    @property
    def available(self) -> bool:
        """Whether its free slots may be handed out now."""
        return self.phase is Phase.READY and not self.draining and not self.suspect


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request: `slots` slots at once, or (prewarming) that `sandboxes` sandboxes are ready."""

    id: int
    template: str
    since: float
    slots: int = 1
    sandboxes: int = 0


@dataclass(slots=True)
class LaunchHistory:
    """The recent launches of one kind: how many rounds failed in a row, and when the next may start."""

    failures: int = 0
    seen: int = 0
    """The latest id at the time of the last failure: a waiter with a higher id came after it."""
    retry_at: float = -math.inf
    hopeless: bool = False
    """The last error does not go away by trying again (a missing image, a refused option)."""
    away: bool = False
    """The last error says that the engine is away, or has no room, for now: whoever waits goes on waiting."""
    error: BaseException | None = None


@dataclass(slots=True)
class Use:
    """How often slots of a template came back, and when the last one did."""

    count: int = 0
    last_at: float = -math.inf


@dataclass(slots=True)
class PoolState:
    """The whole state that the planner looks at. Waiters are in order of arrival."""

    sandboxes: dict[int, SandboxRecord] = field(default_factory=dict)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    launches: dict[str, LaunchHistory] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    _last_id: int = 0

    def next_id(self) -> int:
        """A number that was not given before, for a sandbox or a waiter."""
        self._last_id += 1
        return self._last_id

    def history(self, template: str) -> LaunchHistory:
        """The launches of a template."""
        history = self.launches.get(template)
        if history is None:
            history = self.launches[template] = LaunchHistory()
        return history

    def of_template(self, template: str) -> Iterator[SandboxRecord]:
        """The sandboxes of a template, whatever their phase."""
        return (sandbox for sandbox in self.sandboxes.values() if sandbox.template == template)

    def enqueue(self, template: str, now: float, *, slots: int = 1, sandboxes: int = 0) -> Waiter:
        """A new waiter, last in the line."""
        waiter = Waiter(self.next_id(), template, now, slots, sandboxes)
        self.waiters[waiter.id] = waiter
        return waiter

    def requeue(self, waiter: Waiter) -> None:
        """A waiter whose sandbox failed at hand-out takes its old place in the line again."""
        self.waiters[waiter.id] = waiter
        self.waiters = dict(sorted(self.waiters.items()))

    def begin_launch(self, template: str, size: int, now: float) -> SandboxRecord:
        """A launch begins."""
        sandbox = SandboxRecord(self.next_id(), template, size, now)
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    def complete_launch(self, sandbox: SandboxRecord, slots: Sequence[HasState], now: float) -> None:
        """A launch succeeded: the sandbox has these slots."""
        sandbox.phase = Phase.READY
        sandbox.slots = slots
        sandbox.idle_since = now
        self.launches[sandbox.template] = LaunchHistory()

    def fail_launch(
        self,
        sandbox: SandboxRecord,
        error: BaseException,
        now: float,
        delays_s: tuple[float, float],
        *,
        hopeless: bool = False,
        away: bool = False,
    ) -> None:
        """A launch failed. Launches that were under way at the same time count as one round; those that failed for
        another kind of reason are no rounds of this one.
        """
        self.sandboxes.pop(sandbox.id, None)
        history = self.history(sandbox.template)
        if away != history.away:
            history.failures, history.away = 0, away
        if sandbox.id > history.seen or history.failures == 0:
            first_s, most_s = delays_s
            history.failures += 1
            history.retry_at = now + min(most_s, first_s * 2.0 ** min(history.failures - 1, 30))
        history.seen = self._last_id
        history.error = error
        history.hopeless = hopeless

    def record_return(self, sandbox: SandboxRecord, now: float, *, drain: bool = False) -> None:
        """A slot of a sandbox was released, or was not acquired after all; with `drain` the sandbox lends no more."""
        sandbox.draining = sandbox.draining or drain
        sandbox.idle_since = now
        use = self.uses.setdefault(sandbox.template, Use())
        use.count, use.last_at = use.count + 1, now

    def remove(self, sandbox: SandboxRecord) -> None:
        """A sandbox is gone (ended, or found dead): where there was no room, there may be some now."""
        self.sandboxes.pop(sandbox.id, None)
        for history in self.launches.values():
            if history.away:
                history.retry_at = -math.inf
