"""Acquires slots for samples, which wait for one another without a time limit."""

from __future__ import annotations

from hermes_exec import AcquireTimeout, PoolStats, ProfileConfig, SandboxPool, Slot


async def acquire_slot(pool: SandboxPool, profile: ProfileConfig | None) -> Slot:
    """Acquire a slot of the pool. While others hold slots or a sandbox starts or closes, the wait has no time limit.

    Therefore `acquire_timeout_s` does not end samples that wait for others, of their own or of another image.

    Raises:
        AcquireTimeout: If nothing that can provide a slot is under way.
        ExecError: As `SandboxPool.acquire`.
    """
    while True:
        try:
            return await pool.acquire(profile)
        except AcquireTimeout:
            if not _may_get_room(pool.stats()):
                raise


def _may_get_room(stats: PoolStats) -> bool:
    """Return whether a slot is held, reset or prepared, or a sandbox starts or closes."""
    unavailable = stats.slots_total - stats.slots_free - stats.slots_quarantined
    return bool(stats.slots_in_use or unavailable or stats.sandboxes["launching"] or stats.sandboxes["closing"])
