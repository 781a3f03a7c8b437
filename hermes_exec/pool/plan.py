"""The pool's policy: a pure function from what is there to what should be done. No I/O, no clock of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_exec.pool.state import Phase, PoolState, SandboxRecord, Waiter

BEFORE_ITS_END_S = 60.0
"""How long before its engine ends a box no slot of it is lent any more."""
REPLACED_AFTER_S = 10.0
"""How long a box that is too small for who waits is kept: what replaces it may be no larger."""
USES_BEFORE_A_SPARE = 2
"""A program that takes one slot and ends gets no second box launched."""


@dataclass(frozen=True, slots=True)
class TemplateSize:
    """Size of one template (a profile, or a profile with another image). Times in seconds, None for never.

    `used_once` is of boxes that one tenant gets whole: each is replaced when it comes back. Where boxes differ in size,
    `slots_per_sandbox` is what a launch is expected to bring, and `largest` what it brings at best.
    """

    slots_per_sandbox: int
    min_sandboxes: int = 0
    max_sandboxes: int | None = None
    idle_timeout_s: float | None = 120.0
    max_lifetime_s: float | None = None
    used_once: bool = False
    largest: int = 0


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """What the planner may do. `max_sandboxes` holds over all kinds; times in seconds."""

    max_sandboxes: int
    templates: Mapping[str, TemplateSize]
    launches_at_once: int = 4
    launch_tries: int = 3
    first_delay_s: float = 0.5
    most_delay_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a box of this kind."""

    template: str


@dataclass(frozen=True, slots=True)
class Lend:
    """Give these slots (box id → how many) to a waiter. No shares: the boxes it asked for are ready."""

    waiter: Waiter
    shares: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Close:
    """End a box that nobody holds. `reason`: idle, lifetime, quarantined, used, evicted, replaced."""

    box: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell a waiter that launches for it failed too often; the error is in the launch history of its template."""

    waiter: Waiter


Action = Launch | Lend | Close | Fail


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in this order, and when to ask again if nothing happens before."""

    actions: list[Action]
    wake_at: float


def plan(state: PoolState, config: PlanConfig, now: float) -> Plan:
    """Decide what to do now.

    Waiters are served strictly in order within a kind: what is free is kept for the first whose request is not
    complete, so a large gang is never overtaken by small ones. Over kinds, an earlier waiter has the first claim on
    room under the cap.
    """
    draft = _Draft(state, config, now)
    draft.retire()
    for waiter in state.waiters.values():
        draft.serve(waiter)
    draft.keep_minimum()
    draft.keep_spare()
    draft.scale_down()
    draft.start()
    return Plan(draft.actions, draft.wake_at)


@dataclass(slots=True)
class _Draft:
    """A plan under construction: what of the state is assigned so far."""

    state: PoolState
    config: PlanConfig
    now: float
    actions: list[Action] = field(default_factory=list)
    wake_at: float = math.inf
    free: dict[int, int] = field(default_factory=dict)
    """Slots that no earlier waiter has a claim on, of boxes that lend."""
    coming: dict[str, int] = field(default_factory=dict)
    """Slots of launches, under way or wanted, that no earlier waiter counts on."""
    wanted: list[str] = field(default_factory=list)
    """Launches for which there is room now."""
    alive: dict[str, int] = field(default_factory=dict)
    """Boxes that are or will be there: healthy, launching, wanted."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Their slots."""
    claimed: set[int] = field(default_factory=set)
    """Boxes that may not be closed or lent to later waiters."""
    lent: set[int] = field(default_factory=set)
    """Boxes of which slots are lent now."""
    closed: set[int] = field(default_factory=set)
    leaving: list[int] = field(default_factory=list)
    """Boxes that will make room by themselves, and that nobody counts on yet."""
    retired: set[int] = field(default_factory=set)
    """Boxes on their way out."""
    room: int = 0
    of_template: dict[str, int] = field(default_factory=dict)
    demanded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.demanded = {waiter.template for waiter in self.state.waiters.values()}
        self.room = self.config.max_sandboxes - len(self.state.boxes)
        for box in self.state.boxes.values():
            self.of_template[box.template] = self.of_template.get(box.template, 0) + 1
            if box.phase is Phase.LAUNCHING:
                self._count(box.template, 1, box.size)
                self.coming[box.template] = self.coming.get(box.template, 0) + box.size
            elif box.phase is Phase.CLOSING or (box.phase is Phase.READY and self._retired(box)):
                self.leaving.append(box.id)
                self.retired.add(box.id)
            elif box.phase is Phase.READY:
                self._count(box.template, 1, box.size)
                if box.lendable and (free := box.free):
                    self.free[box.id] = free

    def _count(self, template: str, boxes: int, slots: int) -> None:
        """So many boxes more will be there, or fewer, with so many slots."""
        self.alive[template] = self.alive.get(template, 0) + boxes
        self.capacity[template] = self.capacity.get(template, 0) + slots

    def _retired(self, box: SandboxRecord) -> bool:
        if box.draining or (box.quarantined and box.lent == 0):
            return True
        longest_s = self.config.templates[box.template].max_lifetime_s
        ends_at = min(box.launched_at + (math.inf if longest_s is None else longest_s), box.ends_at - BEFORE_ITS_END_S)
        if ends_at > self.now:
            self.wake_at = min(self.wake_at, ends_at)
            return False
        return True

    def retire(self) -> None:
        """Close the boxes that lend no more and that nobody holds."""
        for box_id in self.leaving:
            box = self.state.boxes[box_id]
            if box.phase is Phase.READY and box.lent == 0:
                self._close(box, "quarantined" if box.quarantined else "used" if box.draining else "lifetime")

    def serve(self, waiter: Waiter) -> None:
        """Lend to a waiter, or see to it that what it needs will be there."""
        if waiter.boxes:
            self._warm(waiter)
            return
        boxes = [box for box in self.state.of_template(waiter.template) if self.free.get(box.id)]
        available = sum(self.free[box.id] for box in boxes)
        if available >= waiter.slots:
            self._lend(waiter, boxes)
            return
        if self._failed(waiter):
            self.actions.append(Fail(waiter))
            return
        for box in boxes:
            self.free.pop(box.id)
            self.claimed.add(box.id)
        missing = waiter.slots - available
        counted = min(missing, self.coming.get(waiter.template, 0))
        if counted:
            self.coming[waiter.template] -= counted
            missing -= counted
        if missing:
            self._grow(waiter, missing, boxes)

    def _lend(self, waiter: Waiter, boxes: list[SandboxRecord]) -> None:
        """Take from the fullest boxes first, so that others become idle and can go."""
        shares: dict[int, int] = {}
        missing = waiter.slots
        for box in sorted(boxes, key=lambda box: (self.free[box.id] - box.lent, box.id)):
            count = min(missing, self.free[box.id])
            shares[box.id] = count
            self.lent.add(box.id)
            missing -= count
            self.free[box.id] -= count
            self.claimed.add(box.id)
            if not missing:
                break
        self.actions.append(Lend(waiter, shares))

    def _failed(self, waiter: Waiter) -> bool:
        """Whether launches failed too often since this waiter came, and the living boxes cannot serve it."""
        history = self.state.launches.get(waiter.template)
        if history is None or history.away or history.seen < waiter.id:
            return False
        if not history.hopeless and history.failures < self.config.launch_tries:
            return False
        if waiter.boxes:
            return self.alive.get(waiter.template, 0) < waiter.boxes
        return self.capacity.get(waiter.template, 0) < waiter.slots

    def _grow(self, waiter: Waiter, missing: int, boxes: list[SandboxRecord]) -> None:
        per_box = self.config.templates[waiter.template].slots_per_sandbox
        while missing > 0:
            needed = self.capacity.get(waiter.template, 0) < waiter.slots
            if not self._want(waiter.template, needed=needed):
                if needed:
                    self._replace(boxes)
                return
            missing -= per_box
        self.coming[waiter.template] = self.coming.get(waiter.template, 0) - missing

    def _want(self, template: str, *, needed: bool) -> bool:
        """Reserve room for one more box: what is free under the cap, else what will be, else what can be made."""
        most = self.config.templates[template].max_sandboxes
        if most is not None and self.of_template.get(template, 0) >= most:
            return False
        if self.room > 0:
            self.room -= 1
            self.wanted.append(template)
        elif not (self._await_leaving(template) or self._evict(template) or (needed and self._drain(template))):
            return False
        self.of_template[template] = self.of_template.get(template, 0) + 1
        self._count(template, 1, self.config.templates[template].slots_per_sandbox)
        return True

    def _await_leaving(self, template: str) -> bool:
        """Count on a box that is on its way out; one that is being closed before one that is still held."""
        if not self.leaving:
            return False
        self.leaving.sort(key=lambda box_id: (self.state.boxes[box_id].lent, box_id), reverse=True)
        self.leaving.pop()
        return True

    def _evict(self, template: str) -> bool:
        """Close an idle box of another template: rather one above its minimum that nobody waits for."""
        spoken_for = self.claimed | self.closed | self.retired
        others = (box for box in self.state.boxes.values() if box.template != template and box.healthy and not box.lent)
        idle = [box for box in others if box.id not in spoken_for]
        if not idle:
            return False
        box = min(
            idle, key=lambda box: (box.template in self.demanded, not self._spare(box.template), box.idle_since, box.id)
        )
        self.free.pop(box.id, None)
        self._count(box.template, -1, -box.size)
        self.of_template[box.template] -= 1
        self._close(box, "evicted")
        return True

    def _drain(self, template: str) -> bool:
        """Keep the least used box of another kind from later waiters until it is empty and can be evicted."""
        others = (box for box in self.state.boxes.values() if box.template != template and box.healthy and box.lent)
        used = [box for box in others if box.id not in self.claimed and box.id not in self.retired]
        if not used:
            return False
        box = min(used, key=lambda box: (box.lent, box.id))
        self.free.pop(box.id, None)
        self.claimed.add(box.id)
        return True

    def _replace(self, boxes: list[SandboxRecord]) -> None:
        """Close the smallest idle one of these boxes, where there may be a larger one in its place."""
        idle = [box for box in boxes if not box.lent and box.id not in self.lent]
        small = [box for box in idle if box.size < self.config.templates[box.template].largest]
        if not small:
            return
        box = min(small, key=lambda box: (box.size, box.id))
        due_at = box.launched_at + REPLACED_AFTER_S
        if due_at > self.now:
            self.wake_at = min(self.wake_at, due_at)
            return
        self._count(box.template, -1, -box.size)
        self._close(box, "replaced")

    def _close(self, box: SandboxRecord, reason: str) -> None:
        self.closed.add(box.id)
        self.actions.append(Close(box.id, reason))

    def _spare(self, template: str) -> bool:
        return self.alive.get(template, 0) > self._least(template)

    def _warm(self, waiter: Waiter) -> None:
        ready = [box for box in self.state.of_template(waiter.template) if box.lendable and box.id not in self.retired]
        if len(ready) >= waiter.boxes:
            self.actions.append(Lend(waiter, {}))
            return
        self.claimed.update(box.id for box in ready)
        if self._failed(waiter):
            self.actions.append(Fail(waiter))
            return
        per_box = self.config.templates[waiter.template].slots_per_sandbox
        while self.alive.get(waiter.template, 0) < waiter.boxes and self._want(waiter.template, needed=False):
            self.coming[waiter.template] = self.coming.get(waiter.template, 0) + per_box

    def keep_minimum(self) -> None:
        """Launch what is missing to each kind's minimum, where there is room."""
        for template, size in self.config.templates.items():
            while self.alive.get(template, 0) < size.min_sandboxes and self.room > 0:
                self.room -= 1
                self.alive[template] = self.alive.get(template, 0) + 1
                self.wanted.append(template)

    def keep_spare(self) -> None:
        """Launch the next box of those that are used once while others are held, where there is room: whoever comes
        back for another one does not wait for its launch.
        """
        for template in self.config.templates:
            while self.alive.get(template, 0) < self._least(template) and self.room > 0:
                most = self.config.templates[template].max_sandboxes
                if most is not None and self.of_template.get(template, 0) >= most:
                    break
                self.room -= 1
                self.alive[template] = self.alive.get(template, 0) + 1
                self.of_template[template] = self.of_template.get(template, 0) + 1
                self.wanted.append(template)

    def _least(self, template: str) -> int:
        """How many boxes are kept: the minimum, and for a while after use one more than are held, of those that are
        used once.
        """
        size, use = self.config.templates[template], self.state.uses.get(template)
        if not size.used_once or use is None or use.count < USES_BEFORE_A_SPARE:
            return size.min_sandboxes
        if size.idle_timeout_s is not None:
            ends_at = use.last_at + size.idle_timeout_s
            if ends_at <= self.now:
                return size.min_sandboxes
            self.wake_at = min(self.wake_at, ends_at)
        held = sum(box.healthy and (box.lent > 0 or box.id in self.lent) for box in self.state.of_template(template))
        return max(size.min_sandboxes, held + 1)

    def scale_down(self) -> None:
        """Close boxes above the minimum that were idle for long enough, the longest idle first."""
        spoken_for = self.claimed | self.closed | self.retired
        for box in sorted(self.state.boxes.values(), key=lambda box: (box.idle_since, box.id)):
            if not box.healthy or box.lent or box.id in spoken_for or not self._spare(box.template):
                continue
            idle_s = self.config.templates[box.template].idle_timeout_s
            if idle_s is None:
                continue
            ends_at = box.idle_since + idle_s
            if ends_at > self.now:
                self.wake_at = min(self.wake_at, ends_at)
                continue
            self.alive[box.template] -= 1
            self._close(box, "idle")

    def start(self) -> None:
        """Start the launches for which there is room, with the pauses after failures."""
        under_way = sum(box.phase is Phase.LAUNCHING for box in self.state.boxes.values())
        for template in self.wanted:
            if under_way >= self.config.launches_at_once:
                return
            retry_at = self.state.launches[template].retry_at if template in self.state.launches else -math.inf
            if retry_at > self.now:
                self.wake_at = min(self.wake_at, retry_at)
                continue
            self.actions.append(Launch(template))
            under_way += 1
