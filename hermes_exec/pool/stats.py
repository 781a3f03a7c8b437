"""The figures of a pool at one moment."""

from __future__ import annotations

from hermes_exec.pool.checkout import Lender
from hermes_exec.pool.fleet import Keeper
from hermes_exec.pool.state import Phase
from hermes_exec.results import PoolStats


def pool_stats(keeper: Keeper | None, lender: Lender | None) -> PoolStats:
    """Count what is there; a pool that was not entered has nothing."""
    entries = [] if keeper is None else list(keeper.ledger.boxes.values())
    ready = [entry for entry in entries if entry.phase is Phase.READY]
    waits = sorted(lender.waits) if lender is not None else []
    calls = 0 if keeper is None else keeper.calls_before + sum(box.channel.calls for box in keeper.boxes.values())
    return PoolStats(
        sandboxes={phase.value: sum(entry.phase is phase for entry in entries) for phase in Phase},
        slots_total=sum(entry.slots for entry in ready),
        slots_lent=sum(entry.lent for entry in entries),
        slots_free=sum(entry.free for entry in ready),
        slots_quarantined=sum(entry.quarantined for entry in entries),
        waiting=0 if keeper is None else len(keeper.ledger.waiters),
        launches=0 if keeper is None else keeper.launches,
        failures=0 if keeper is None else keeper.failures,
        calls=calls,
        acquire_p50_s=_percentile(waits, 0.5),
        acquire_p95_s=_percentile(waits, 0.95),
    )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
