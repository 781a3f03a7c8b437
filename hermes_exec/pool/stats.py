"""The figures of a pool at one moment."""

from __future__ import annotations

from hermes_exec.pool.checkout import Checkouts
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.state import Phase
from hermes_exec.results import PoolStats


def pool_stats(fleet: Fleet | None, checkouts: Checkouts | None, slots_most: int) -> PoolStats:
    """Count what is there; a pool that was not entered has nothing."""
    records = [] if fleet is None else list(fleet.state.boxes.values())
    ready = [record for record in records if record.phase is Phase.READY]
    waits = sorted(checkouts.waits) if checkouts is not None else []
    calls = 0 if fleet is None else fleet.calls_before + sum(box.channel.calls for box in fleet.boxes.values())
    acquired = 0 if checkouts is None else checkouts.acquired
    return PoolStats(
        sandboxes={phase.value: sum(record.phase is phase for record in records) for phase in Phase},
        slots_most=slots_most,
        slots_total=sum(record.slots for record in ready),
        slots_lent=sum(record.lent for record in records),
        slots_free=sum(record.free for record in ready),
        slots_quarantined=sum(record.quarantined for record in records),
        waiting=0 if fleet is None else len(fleet.state.waiters),
        launches=0 if fleet is None else fleet.launches,
        failures=0 if fleet is None else fleet.failures,
        calls=calls,
        acquired=acquired,
        released=0 if checkouts is None else acquired - len(checkouts.by_slot),
        acquire_p50_s=_percentile(waits, 0.5),
        acquire_p95_s=_percentile(waits, 0.95),
        runners={} if fleet is None else {box.id: box.channel.memory for box in fleet.boxes.values()},
    )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
