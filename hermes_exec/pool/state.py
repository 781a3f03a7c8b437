"""The state of a pool: sandboxes, the states of their slots, waiting requests. Plain data, no I/O and no policy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Phase(Enum):
    """Phases in the life of a sandbox. A dead sandbox is no longer in the state."""

    LAUNCHING = "launching"
    READY = "ready"
    LOST = "lost"
    """Unreachable, but not known to be dead: it counts, gets no new holders, and is not destroyed."""
    CLOSING = "closing"


class SlotState(Enum):
    """States of a slot from one holder to the next."""

    FREE = "free"
    PREPARING = "preparing"
    """It is prepared for a request."""
    HELD = "held"
    """A holder has it, also while it is reset for the same holder."""
    RESETTING = "resetting"
    QUARANTINED = "quarantined"
    """It could not be proven clean, and is not used again."""


class HasState(Protocol):
    """The part of a slot that the policy needs."""

    state: SlotState


@dataclass(slots=True)
class SandboxRecord:
    """One sandbox. `size` is the number of its slots, which exist once it is ready."""

    id: int
    template: str
    size: int
    launched_at: float
    phase: Phase = Phase.LAUNCHING
    doing: str = ""
    """The current step of its launch, for the error of a request that times out."""
    slots: Sequence[HasState] = ()
    draining: bool = False
    """It accepts no new holders, and is closed when its last holder has left."""
    suspect: bool = False
    """It did not answer, or its disk was nearly full, when a slot was prepared; it gets no new holders until that is
    over.
    """
    ready_at: float = math.inf
    idle_since: float = 0.0
    ends_at: float = math.inf
    """When its engine ends it."""
    checkpoints: int = 0
    """The number of living checkpoints that it has to keep: their other copies, if there are any, may be closed."""
    handing_over: bool = False
    """Whether these checkpoints are being moved to another sandbox."""

    def count(self, state: SlotState) -> int:
        """Return how many of its slots are in this state."""
        return [slot.state for slot in self.slots].count(state)

    @property
    def free(self) -> int:
        """The number of slots that can be acquired."""
        return self.count(SlotState.FREE)

    @property
    def quarantined(self) -> int:
        """The number of quarantined slots."""
        return self.count(SlotState.QUARANTINED)

    @property
    def in_use(self) -> int:
        """The number of slots that are prepared, held or reset."""
        return len(self.slots) - self.free - self.quarantined

    @property
    def healthy(self) -> bool:
        """Whether its slots return to the pool."""
        return self.phase is Phase.READY and not self.draining

    @property
    def available(self) -> bool:
        """Whether its free slots may be assigned now."""
        return self.phase is Phase.READY and not self.draining and not self.suspect


@dataclass(frozen=True, slots=True)
class Waiter:
    """One waiting request: for `slots` slots at once, or (prewarming) for `sandboxes` ready sandboxes.

    `checkpoint` is the id of the checkpoint from which the slots start; None for none.
    """

    id: int
    template: str
    since: float
    slots: int = 1
    sandboxes: int = 0
    checkpoint: str | None = None


@dataclass(slots=True)
class LaunchHistory:
    """The recent launches of one template: how many rounds failed in a row, and when the next may start."""

    failures: int = 0
    seen: int = 0
    """The latest id at the time of the last failure: a request with a higher id came after it."""
    retry_at: float = -math.inf
    hopeless: bool = False
    """Whether a retry cannot fix the last error (a missing image, a refused option)."""
    away: bool = False
    """Whether the last error is temporary: the engine is unavailable or has no room. Requests keep waiting."""
    error: BaseException | None = None


@dataclass(slots=True)
class Use:
    """How many slots of a template were released, and when the last one was."""

    count: int = 0
    last_at: float = -math.inf


@dataclass(slots=True)
class PoolState:
    """The whole input of the planner. Waiting requests are in order of arrival."""

    sandboxes: dict[int, SandboxRecord] = field(default_factory=dict)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    launches: dict[str, LaunchHistory] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    copies: dict[str, list[int]] = field(default_factory=dict)
    """The sandboxes that have a copy of a living checkpoint, by its id. The first one keeps it."""
    _last_id: int = 0

    def next_id(self) -> int:
        """Return a new number for a sandbox or a request."""
        self._last_id += 1
        return self._last_id

    def history(self, template: str) -> LaunchHistory:
        """Return the launch history of a template."""
        history = self.launches.get(template)
        if history is None:
            history = self.launches[template] = LaunchHistory()
        return history

    def of_template(self, template: str) -> Iterator[SandboxRecord]:
        """Return the sandboxes of a template, whatever their phase."""
        return (sandbox for sandbox in self.sandboxes.values() if sandbox.template == template)

    def enqueue(
        self, template: str, now: float, *, slots: int = 1, sandboxes: int = 0, checkpoint: str | None = None
    ) -> Waiter:
        """Add a request at the end of the queue, and return it."""
        waiter = Waiter(self.next_id(), template, now, slots, sandboxes, checkpoint)
        self.waiters[waiter.id] = waiter
        return waiter

    def requeue(self, waiter: Waiter) -> None:
        """Put a request back at its old position, after its sandbox failed."""
        self.waiters[waiter.id] = waiter
        self.waiters = dict(sorted(self.waiters.items()))

    def begin_launch(self, template: str, size: int, now: float) -> SandboxRecord:
        """Add a sandbox that is being launched, and return it."""
        sandbox = SandboxRecord(self.next_id(), template, size, now)
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    def complete_launch(self, sandbox: SandboxRecord, slots: Sequence[HasState], now: float) -> None:
        """Record a successful launch: the sandbox has these slots."""
        sandbox.phase = Phase.READY
        sandbox.slots = slots
        sandbox.ready_at = sandbox.idle_since = now
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
        """Record a failed launch.

        Launches that were under way at the same time count as one round. A temporary failure (`away`) and another
        failure start each other's count anew.
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
        """Record that a slot was released, or not acquired after all. With `drain`, the sandbox gets no new holders."""
        sandbox.draining = sandbox.draining or drain
        sandbox.idle_since = now
        use = self.uses.setdefault(sandbox.template, Use())
        use.count, use.last_at = use.count + 1, now

    def remove(self, sandbox: SandboxRecord) -> None:
        """Remove a sandbox that has ended: launches that failed for lack of room may be tried again."""
        self.sandboxes.pop(sandbox.id, None)
        for history in self.launches.values():
            if history.away:
                history.retry_at = -math.inf
