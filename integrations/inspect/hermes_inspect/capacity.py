"""Acquires slots for samples, which wait for one another without a time limit."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import anyio

from hermes_exec import ProfileConfig, SandboxPool, Slot

_free: WeakKeyDictionary[SandboxPool, anyio.Semaphore] = WeakKeyDictionary()
"""How many more samples may ask each pool for a slot."""


async def acquire_slot(pool: SandboxPool, profile: ProfileConfig | None) -> Slot:
    """Acquire a slot of the pool when no more samples have one than it has slots.

    Therefore `acquire_timeout_s` does not count the time that other samples take. Raises as `SandboxPool.acquire`.
    """
    free = _free.setdefault(pool, anyio.Semaphore(pool.stats().slots_most))
    await free.acquire()
    try:
        return await pool.acquire(profile)
    except BaseException:
        free.release()
        raise


async def release_slot(pool: SandboxPool, slot: Slot) -> None:
    """Release a slot that `acquire_slot` returned."""
    try:
        await pool.release(slot)
    finally:
        _free[pool].release()
