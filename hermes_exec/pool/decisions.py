"""The input and the decisions of the planner, besides the state of the pool."""

from collections.abc import Mapping
from dataclasses import dataclass

from hermes_exec.pool.state import Waiter


@dataclass(frozen=True, slots=True)
class TemplateSize:
    """Sizes of one template (a profile, or a profile with another image). Times in seconds, None for never.

    `used_once` marks sandboxes that one holder gets whole: each is replaced after its release. Where sandboxes differ
    in size, `slots_per_sandbox` is the expected number of slots of a launch, and `largest` the highest possible one.
    Above 1, `spread` is the number of sandboxes (one for each host) over which slots are spread evenly; otherwise the
    fullest sandbox is used first.
    """

    slots_per_sandbox: int
    min_sandboxes: int = 0
    max_sandboxes: int | None = None
    idle_timeout_s: float | None = 120.0
    max_lifetime_s: float | None = None
    used_once: bool = False
    largest: int = 0
    spread: int = 1


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """The limits of the planner. `max_sandboxes` applies over all templates; times in seconds."""

    max_sandboxes: int
    templates: Mapping[str, TemplateSize]
    launches_at_once: int = 4
    launch_tries: int = 3
    first_delay_s: float = 0.5
    most_delay_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A decision to start a sandbox of this template."""

    template: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots (sandbox id → count) for a request. Empty shares: the sandboxes that it waits for are ready."""

    waiter: Waiter
    shares: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Close:
    """A decision to end a sandbox without holders. `reason`: idle, lifetime, quarantined, used, evicted, replaced."""

    sandbox: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """A decision to move the checkpoints of a sandbox that is about to end to another one."""

    sandbox: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A request whose launches failed too often, or whose checkpoint has ended with its sandboxes."""

    waiter: Waiter


Action = Launch | Grant | Close | HandOver | Fail


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The actions to take now, in this order, and when to plan again if nothing happens before."""

    actions: list[Action]
    wake_at: float
