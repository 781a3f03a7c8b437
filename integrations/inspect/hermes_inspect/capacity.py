"""Acquires slots for samples, which wait for one another without a time limit."""

from __future__ import annotations

from hermes_exec import AcquireTimeout, ProfileConfig, SandboxPool, Slot


async def acquire_slot(pool: SandboxPool, profile: ProfileConfig | None) -> Slot:
    """Acquire a slot of the pool. While others hold slots or a sandbox starts, the wait has no time limit.

    Therefore `acquire_timeout_s` does not end samples that wait for others, of their own or of another image.

    Raises:
        AcquireTimeout: If nothing that can provide a slot is under way.
        ExecError: As `SandboxPool.acquire`.
    """
    while True:
        try:
            return await pool.acquire(profile)
        except AcquireTimeout:
            stats = pool.stats()
            if not stats.slots_in_use and not stats.sandboxes.get("launching"):
                raise
