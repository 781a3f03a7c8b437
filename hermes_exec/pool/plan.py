"""The pool's policy: a pure function from the pool's state to the actions to take. No I/O, no clock of its own."""

import math
from dataclasses import dataclass, field

from hermes_exec.pool.decisions import Action, Close, Fail, Grant, HandOver, Launch, PlanConfig, PoolPlan, TemplateSize
from hermes_exec.pool.spread import count_demand, count_kept, kept_until
from hermes_exec.pool.state import Phase, PoolState, SandboxRecord, Waiter

DRAIN_BEFORE_END_S = 60.0
"""How long before its engine ends a sandbox its slots are no longer assigned."""
HAND_OVER_S = 300.0
"""How long before that its checkpoints are moved to another sandbox, at most: a quarter of a shorter life."""
REPLACE_AFTER_S = 10.0
"""How long a sandbox that is too small for the waiting request is kept: its replacement may be no larger."""
USES_BEFORE_A_SPARE = 2
"""Uses before a spare sandbox is kept: a program that takes one slot and ends gets no second sandbox."""


def plan(state: PoolState, config: PlanConfig, now: float) -> PoolPlan:
    """Decide which actions to take now.

    Within a template, requests are served strictly in order. Free slots are kept for the first request that is not
    complete, so small requests never overtake a large gang. Across templates, an earlier request has the first claim on
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
    return PoolPlan(draft.actions, draft.wake_at)


def retires_at(sandbox: SandboxRecord, longest_s: float | None, *, keeps_checkpoints: bool) -> float:
    """Return when a sandbox gets its last holders. One that keeps checkpoints does so earlier, to hand them over."""
    lifetime_ends_at = math.inf if longest_s is None else sandbox.launched_at + longest_s
    engine_ends_at = sandbox.ends_at - DRAIN_BEFORE_END_S
    if keeps_checkpoints and engine_ends_at < math.inf:
        engine_ends_at -= min(HAND_OVER_S, max(0.0, (engine_ends_at - sandbox.launched_at) / 4))
    return min(lifetime_ends_at, engine_ends_at)


@dataclass(slots=True)
class _Draft:
    """A plan under construction: the part of the state that is assigned so far."""

    state: PoolState
    config: PlanConfig
    now: float
    actions: list[Action] = field(default_factory=list)
    wake_at: float = math.inf
    free: dict[int, int] = field(default_factory=dict)
    """Free slots of available sandboxes that no earlier request has claimed."""
    coming: dict[str, int] = field(default_factory=dict)
    """Slots of launches, under way or wanted, that no earlier request counts on."""
    wanted: list[str] = field(default_factory=list)
    """Launches for which there is room now."""
    alive: dict[str, int] = field(default_factory=dict)
    """Number of sandboxes that are healthy, launching or wanted."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Their slots."""
    claimed: set[int] = field(default_factory=set)
    """Sandboxes that may neither be closed nor serve later requests."""
    in_use: set[int] = field(default_factory=set)
    """Sandboxes that this plan assigns slots of."""
    closed: set[int] = field(default_factory=set)
    leaving: list[int] = field(default_factory=list)
    """Sandboxes that will make room by themselves, and that nobody counts on yet."""
    retired: set[int] = field(default_factory=set)
    """Sandboxes that are about to end, or are kept for their checkpoints."""
    kept: dict[int, int] = field(default_factory=dict)
    """Free slots of sandboxes that are kept for their checkpoints: for forks, and others where none can be launched."""
    room: int = 0
    of_template: dict[str, int] = field(default_factory=dict)
    demanded: set[str] = field(default_factory=set)
    demand: dict[str, int] = field(default_factory=dict)
    """Slots in use or requested, of templates that are spread."""

    def __post_init__(self) -> None:
        self.demanded = {waiter.template for waiter in self.state.waiters.values()}
        self.room = self.config.max_sandboxes - len(self.state.sandboxes)
        for sandbox in self.state.sandboxes.values():
            self.of_template[sandbox.template] = self.of_template.get(sandbox.template, 0) + 1
            if sandbox.phase is Phase.LAUNCHING:
                self._count(sandbox.template, 1, sandbox.size)
                self.coming[sandbox.template] = self.coming.get(sandbox.template, 0) + sandbox.size
            elif sandbox.phase is Phase.CLOSING or (sandbox.phase is Phase.READY and self._is_retired(sandbox)):
                self.retired.add(sandbox.id)
                if not sandbox.checkpoints:
                    self.leaving.append(sandbox.id)
                elif not sandbox.suspect:
                    self.kept[sandbox.id] = sandbox.free
            elif sandbox.phase is Phase.READY:
                self._count(sandbox.template, 1, sandbox.size)
                if sandbox.available and (free := sandbox.free):
                    self.free[sandbox.id] = free
        for template, size in self.config.templates.items():
            if size.spread > 1:
                self._spread(template, size)

    def _spread(self, template: str, size: TemplateSize) -> None:
        """Count the demand. Sandboxes that are ready before the others keep the slots above their even share back."""
        siblings = list(self.state.of_template(template))
        healthy = [sandbox for sandbox in siblings if sandbox.healthy and sandbox.id not in self.retired]
        demand = self.demand[template] = count_demand(template, healthy, self.state.waiters.values())
        missing = max(0, min(size.spread, demand) - self.alive.get(template, 0))
        expected = self.capacity.get(template, 0) + missing * size.slots_per_sandbox
        for sandbox in healthy:
            if sandbox.id in self.free and (until := kept_until(sandbox, siblings)) > self.now:
                kept = count_kept(sandbox, self.free[sandbox.id], demand, expected)
                self.free[sandbox.id] -= kept
                self.coming[template] = self.coming.get(template, 0) + kept
                self.wake_at = min(self.wake_at, until)

    def _count(self, template: str, sandboxes: int, slots: int) -> None:
        """Add sandboxes and slots (or subtract them, if negative) to the numbers of a template."""
        self.alive[template] = self.alive.get(template, 0) + sandboxes
        self.capacity[template] = self.capacity.get(template, 0) + slots

    def _is_retired(self, sandbox: SandboxRecord) -> bool:
        if sandbox.draining or (sandbox.quarantined and sandbox.in_use == 0):
            return True
        longest_s = self.config.templates[sandbox.template].max_lifetime_s
        ends_at = retires_at(sandbox, longest_s, keeps_checkpoints=sandbox.checkpoints > 0)
        if ends_at > self.now:
            self.wake_at = min(self.wake_at, ends_at)
            return False
        return True

    def retire(self) -> None:
        """Close the retired sandboxes that nobody holds, after their checkpoints have moved to others."""
        for sandbox_id in self.retired:
            sandbox = self.state.sandboxes[sandbox_id]
            if sandbox.phase is Phase.READY and sandbox.checkpoints and not sandbox.handing_over:
                self.actions.append(HandOver(sandbox_id))
        for sandbox_id in self.leaving:
            sandbox = self.state.sandboxes[sandbox_id]
            if sandbox.phase is Phase.READY and sandbox.in_use == 0:
                self._close(
                    sandbox, "quarantined" if sandbox.quarantined else "used" if sandbox.draining else "lifetime"
                )

    def serve(self, waiter: Waiter) -> None:
        """Assign slots to a request, or arrange for the sandboxes that it needs."""
        if waiter.sandboxes:
            self._warm(waiter)
            return
        holders: set[int] = set()
        if waiter.checkpoint is not None:
            holders = {each for each in self.state.copies.get(waiter.checkpoint, ()) if each in self.state.sandboxes}
            if not holders:
                self.actions.append(Fail(waiter))
                return
            if all(self.state.sandboxes[each].phase is not Phase.READY for each in holders):
                return
        sandboxes = [sandbox for sandbox in self.state.of_template(waiter.template) if self.free.get(sandbox.id)]
        kept = [sandbox for sandbox in self._kept_of(waiter.template) if sandbox.id in holders]
        available = sum(self.free[sandbox.id] for sandbox in sandboxes) + sum(self.kept[each.id] for each in kept)
        others = [sandbox for sandbox in self._kept_of(waiter.template) if sandbox.id not in holders]
        others = [sandbox for sandbox in others if sandbox.ends_at - DRAIN_BEFORE_END_S > self.now]
        if others and available < waiter.slots and not self._can_launch(waiter.template):
            kept += others
            available += sum(self.kept[sandbox.id] for sandbox in others)
        if available >= waiter.slots:
            self._grant(waiter, sandboxes + kept, holders)
            return
        if self._has_failed(waiter):
            self.actions.append(Fail(waiter))
            return
        for sandbox in sandboxes:
            self.free.pop(sandbox.id)
            self.claimed.add(sandbox.id)
        for sandbox in kept:
            self.kept.pop(sandbox.id)
        self.claimed.update(each for each in holders if self.state.sandboxes[each].template == waiter.template)
        missing = waiter.slots - available
        counted = min(missing, self.coming.get(waiter.template, 0))
        if counted:
            self.coming[waiter.template] -= counted
            missing -= counted
        if missing:
            self._grow(waiter, missing, sandboxes)

    def _grant(self, waiter: Waiter, sandboxes: list[SandboxRecord], holders: set[int]) -> None:
        """Take slots from the fullest sandboxes first, so that others become idle and can be closed, and from those
        with checkpoints last. If they are spread, take each slot from the sandbox with the largest share of free slots.
        `holders` have the checkpoint of the request, and come before others.
        """
        shares: dict[int, int] = {}
        missing, spread = waiter.slots, self.config.templates[waiter.template].spread > 1

        free = {each.id: self.kept[each.id] if each.id in self.kept else self.free[each.id] for each in sandboxes}

        def rank(sandbox: SandboxRecord) -> tuple[bool, bool, float, int]:
            share = -free[sandbox.id] / sandbox.size if spread else free[sandbox.id] - sandbox.in_use
            return sandbox.id not in holders, sandbox.checkpoints > 0, share, sandbox.id

        while missing:
            sandbox = min((each for each in sandboxes if free[each.id]), key=rank)
            count = 1 if spread else min(missing, free[sandbox.id])
            shares[sandbox.id] = shares.get(sandbox.id, 0) + count
            self.in_use.add(sandbox.id)
            missing -= count
            free[sandbox.id] -= count
            (self.kept if sandbox.id in self.kept else self.free)[sandbox.id] = free[sandbox.id]
            self.claimed.add(sandbox.id)
        self.actions.append(Grant(waiter, shares))

    def _kept_of(self, template: str) -> list[SandboxRecord]:
        """Return the sandboxes of a template that are kept for their checkpoints and have free slots."""
        kept = (self.state.sandboxes[sandbox_id] for sandbox_id, free in self.kept.items() if free)
        return [sandbox for sandbox in kept if sandbox.template == template]

    def _can_launch(self, template: str) -> bool:
        """Check whether a sandbox that no earlier request counts on is coming, or can be launched before any holder
        leaves. If not, sandboxes that are kept for their checkpoints serve all requests, which would starve otherwise.
        """
        if self.coming.get(template):
            return True
        history, most = self.state.launches.get(template), self.config.templates[template].max_sandboxes
        if (history is not None and history.failures) or (
            most is not None and self.of_template.get(template, 0) >= most
        ):
            return False
        leaving = (self.state.sandboxes[sandbox_id] for sandbox_id in self.leaving)
        return self.room > 0 or any(not each.in_use for each in leaving) or bool(self._find_idle(template))

    def _has_failed(self, waiter: Waiter) -> bool:
        """Check whether launches failed too often since this request came, and the living sandboxes cannot serve it."""
        history = self.state.launches.get(waiter.template)
        if history is None or history.away or history.seen < waiter.id:
            return False
        if not history.hopeless and history.failures < self.config.launch_tries:
            return False
        if waiter.sandboxes:
            return self.alive.get(waiter.template, 0) < waiter.sandboxes
        return self.capacity.get(waiter.template, 0) < waiter.slots

    def _grow(self, waiter: Waiter, missing: int, sandboxes: list[SandboxRecord]) -> None:
        per_sandbox = self.config.templates[waiter.template].slots_per_sandbox
        while missing > 0:
            needed = self.capacity.get(waiter.template, 0) < waiter.slots
            if not self._want(waiter.template, needed=needed):
                if needed:
                    self._replace(sandboxes)
                return
            missing -= per_sandbox
        self.coming[waiter.template] = self.coming.get(waiter.template, 0) - missing

    def _want(self, template: str, *, needed: bool) -> bool:
        """Reserve room for one more sandbox: free room under the cap, then room of sandboxes that leave, then room made
        by eviction.
        """
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
        """Count on the room of a leaving sandbox, preferably a closing one, not one that is still held."""
        if not self.leaving:
            return False
        self.leaving.sort(key=lambda sandbox_id: (self.state.sandboxes[sandbox_id].in_use, sandbox_id), reverse=True)
        self.leaving.pop()
        return True

    def _find_idle(self, template: str) -> list[SandboxRecord]:
        """Return the idle sandboxes of other templates that can be evicted."""
        spoken_for = self.claimed | self.closed | self.retired
        others = (
            sandbox
            for sandbox in self.state.sandboxes.values()
            if sandbox.template != template and sandbox.healthy and not sandbox.in_use and not sandbox.checkpoints
        )
        return [sandbox for sandbox in others if sandbox.id not in spoken_for]

    def _evict(self, template: str) -> bool:
        """Close an idle sandbox of another template, preferably one above its minimum that no request needs."""
        if not (idle := self._find_idle(template)):
            return False
        sandbox = min(
            idle,
            key=lambda sandbox: (
                sandbox.template in self.demanded,
                not self._has_spare(sandbox.template),
                sandbox.idle_since,
                sandbox.id,
            ),
        )
        self.free.pop(sandbox.id, None)
        self._count(sandbox.template, -1, -sandbox.size)
        self.of_template[sandbox.template] -= 1
        self._close(sandbox, "evicted")
        return True

    def _drain(self, template: str) -> bool:
        """Reserve the least used sandbox of another template: later requests get no slots of it, until it is empty and
        can be evicted.
        """
        others = (
            sandbox
            for sandbox in self.state.sandboxes.values()
            if sandbox.template != template and sandbox.healthy and sandbox.in_use and not sandbox.checkpoints
        )
        used = [sandbox for sandbox in others if sandbox.id not in self.claimed and sandbox.id not in self.retired]
        if not used:
            return False
        sandbox = min(used, key=lambda sandbox: (sandbox.in_use, sandbox.id))
        self.free.pop(sandbox.id, None)
        self.claimed.add(sandbox.id)
        return True

    def _replace(self, sandboxes: list[SandboxRecord]) -> None:
        """Close the smallest idle sandbox of these, if a larger one may take its room."""
        idle = [sandbox for sandbox in sandboxes if not sandbox.in_use and sandbox.id not in self.in_use]
        templates = self.config.templates
        small = [each for each in idle if each.size < templates[each.template].largest and not each.checkpoints]
        if not small:
            return
        sandbox = min(small, key=lambda sandbox: (sandbox.size, sandbox.id))
        due_at = sandbox.launched_at + REPLACE_AFTER_S
        if due_at > self.now:
            self.wake_at = min(self.wake_at, due_at)
            return
        self._count(sandbox.template, -1, -sandbox.size)
        self._close(sandbox, "replaced")

    def _close(self, sandbox: SandboxRecord, reason: str) -> None:
        self.closed.add(sandbox.id)
        self.actions.append(Close(sandbox.id, reason))

    def _has_spare(self, template: str) -> bool:
        return self.alive.get(template, 0) > self._minimum(template)

    def _warm(self, waiter: Waiter) -> None:
        ready = [
            sandbox
            for sandbox in self.state.of_template(waiter.template)
            if sandbox.available and sandbox.id not in self.retired
        ]
        if len(ready) >= waiter.sandboxes:
            self.actions.append(Grant(waiter, {}))
            return
        self.claimed.update(sandbox.id for sandbox in ready)
        if self._has_failed(waiter):
            self.actions.append(Fail(waiter))
            return
        per_sandbox = self.config.templates[waiter.template].slots_per_sandbox
        while (alive := self.alive.get(waiter.template, 0)) < waiter.sandboxes and self._want(
            waiter.template, needed=not alive
        ):
            self.coming[waiter.template] = self.coming.get(waiter.template, 0) + per_sandbox

    def keep_minimum(self) -> None:
        """Launch up to each template's minimum, where there is room."""
        for template, size in self.config.templates.items():
            while self.alive.get(template, 0) < size.min_sandboxes and self.room > 0:
                self.room -= 1
                self.alive[template] = self.alive.get(template, 0) + 1
                self.wanted.append(template)

    def keep_spare(self) -> None:
        """Launch a spare where sandboxes are used once and there is room: the next request then waits for no launch.
        Launch the sandboxes over which slots are spread, if that leaves room for the other templates.
        """
        for template, size in self.config.templates.items():
            others = [other for other in self.config.templates if other != template and size.spread > 1]
            room_for_others = sum(not self.of_template.get(other) for other in others)
            while self.alive.get(template, 0) < self._minimum(template) and self.room > room_for_others:
                most = self.config.templates[template].max_sandboxes
                if most is not None and self.of_template.get(template, 0) >= most:
                    break
                self.room -= 1
                self.alive[template] = self.alive.get(template, 0) + 1
                self.of_template[template] = self.of_template.get(template, 0) + 1
                self.wanted.append(template)

    def _minimum(self, template: str) -> int:
        """Return how many sandboxes to keep: the minimum, or for a while after use one more than are held, if each is
        used once. If slots are spread, one for each slot that is in use or requested, up to the number of hosts.
        """
        size, use = self.config.templates[template], self.state.uses.get(template)
        if size.spread > 1:
            return max(size.min_sandboxes, min(size.spread, self.demand[template]))
        if not size.used_once or use is None or use.count < USES_BEFORE_A_SPARE:
            return size.min_sandboxes
        if size.idle_timeout_s is not None:
            ends_at = use.last_at + size.idle_timeout_s
            if ends_at <= self.now:
                return size.min_sandboxes
            self.wake_at = min(self.wake_at, ends_at)
        held = sum(
            sandbox.healthy and (sandbox.in_use > 0 or sandbox.id in self.in_use)
            for sandbox in self.state.of_template(template)
        )
        return max(size.min_sandboxes, held + 1)

    def scale_down(self) -> None:
        """Close sandboxes above the minimum that have been idle long enough, the longest idle first."""
        spoken_for = self.claimed | self.closed | self.retired
        for sandbox in sorted(self.state.sandboxes.values(), key=lambda sandbox: (sandbox.idle_since, sandbox.id)):
            if (
                not sandbox.healthy
                or sandbox.in_use
                or sandbox.checkpoints
                or sandbox.id in spoken_for
                or not self._has_spare(sandbox.template)
            ):
                continue
            idle_s = self.config.templates[sandbox.template].idle_timeout_s
            if idle_s is None:
                continue
            ends_at = sandbox.idle_since + idle_s
            if ends_at > self.now:
                self.wake_at = min(self.wake_at, ends_at)
                continue
            self.alive[sandbox.template] -= 1
            self._close(sandbox, "idle")

    def start(self) -> None:
        """Start the launches for which there is room, with pauses after failures."""
        under_way = sum(sandbox.phase is Phase.LAUNCHING for sandbox in self.state.sandboxes.values())
        for template in self.wanted:
            if under_way >= self.config.launches_at_once:
                return
            retry_at = self.state.launches[template].retry_at if template in self.state.launches else -math.inf
            if retry_at > self.now:
                self.wake_at = min(self.wake_at, retry_at)
                continue
            self.actions.append(Launch(template))
            under_way += 1
