"""The figures of a pool at one moment."""

from __future__ import annotations

from hermes_exec.pool.running import RunningPool
from hermes_exec.pool.state import Phase
from hermes_exec.results import PoolStats


def pool_stats(running: RunningPool | None, slots_most: int) -> PoolStats:
    """Return the figures of a pool; all are zero before it is entered."""
    if running is None:
        return PoolStats(sandboxes={phase.value: 0 for phase in Phase}, slots_most=slots_most)
    fleet, queue = running.fleet, running.queue
    records = list(fleet.state.sandboxes.values())
    ready = [record for record in records if record.phase is Phase.READY]
    waits = sorted(queue.waits)
    return PoolStats(
        sandboxes={phase.value: sum(record.phase is phase for record in records) for phase in Phase},
        slots_most=slots_most,
        slots_total=sum(record.size for record in ready),
        slots_in_use=sum(record.in_use for record in records),
        slots_free=sum(record.free for record in ready),
        slots_quarantined=sum(record.quarantined for record in records),
        waiting=len(fleet.state.waiters),
        launches=fleet.launches,
        failures=fleet.failures,
        calls=fleet.calls_before + sum(sandbox.channel.calls for sandbox in fleet.sandboxes.values()),
        acquired=queue.acquired,
        released=queue.acquired - len(running.releases.held),
        checkpoints=len(running.checkpoints),
        acquire_p50_s=_percentile(waits, 0.5),
        acquire_p95_s=_percentile(waits, 0.95),
        runners={sandbox.id: sandbox.channel.memory for sandbox in fleet.sandboxes.values()},
        layers={sandbox.id: sandbox.channel.layers for sandbox in fleet.sandboxes.values()},
    )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
