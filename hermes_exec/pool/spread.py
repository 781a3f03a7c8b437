"""The even spread of slots over the sandboxes of several hosts: a part of the pool's policy. No I/O, no clock."""

import math
from collections.abc import Iterable

from hermes_exec.pool.state import Phase, SandboxRecord, Waiter

SPREAD_WAIT_S = 3.0
"""How long a sandbox that is ready keeps slots back for the launches that began before it was: requests that came
together then go to all of them.
"""


def count_demand(template: str, sandboxes: Iterable[SandboxRecord], waiters: Iterable[Waiter]) -> int:
    """Return the number of slots of a template that are requested, or in use in these sandboxes."""
    waiting = sum(waiter.slots for waiter in waiters if waiter.template == template)
    return waiting + sum(sandbox.in_use for sandbox in sandboxes)


def kept_until(sandbox: SandboxRecord, siblings: Iterable[SandboxRecord]) -> float:
    """Return until when a sandbox keeps slots back for its siblings: those that were launching when it was ready."""
    launching = (each for each in siblings if each.phase is Phase.LAUNCHING)
    return sandbox.ready_at + SPREAD_WAIT_S if any(each.launched_at <= sandbox.ready_at for each in launching) else 0.0


def count_kept(sandbox: SandboxRecord, free: int, demand: int, expected: int) -> int:
    """Return how many of its free slots a sandbox keeps back, if `expected` slots shall serve the demand evenly."""
    share = math.ceil(demand * sandbox.size / expected)
    return min(free, max(0, free + sandbox.in_use - share))
