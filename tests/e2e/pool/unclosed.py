"""A program that never closes its pool: `unclosed.py HOW BACKEND IMAGE RUN_ID WORD [LEASE_S]`. It prints its
sandbox.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from hermes_exec import SandboxPool

KEPT: list[Any] = []


def blocking(how: str, pool: SandboxPool, word: str) -> None:
    """Leave a pool open that was entered with `with`."""
    entered = pool.__enter__()
    slot = entered.acquire()
    if how == "run":
        print(slot.sandbox, flush=True)
        slot.run(["sleep", word], timeout_s=None)
    slot.spawn(["sleep", word])
    KEPT.extend([pool, slot])
    end(how, slot.sandbox)


async def asynchronous(how: str, pool: SandboxPool, word: str) -> None:
    """Leave a pool open that was entered with `async with`."""
    await pool.__aenter__()
    slot = await pool.acquire()
    await slot.spawn(["sleep", word])
    KEPT.extend([pool, slot])
    end(how, slot.sandbox)


def end(how: str, sandbox: str) -> None:
    """End as asked for."""
    print(sandbox, flush=True)
    if "raise" in how:
        raise LookupError("of the program")
    if "exit" in how:
        sys.exit(7)


def main(how: str, backend: str, image: str, run_id: str, word: str, lease_s: str = "60") -> None:
    """Make the pool and forget it."""
    pool = SandboxPool(backend, image=image or None, run_id=run_id, lease_s=float(lease_s))
    if how.startswith("async"):
        anyio.run(asynchronous, how, pool, word)
    else:
        blocking(how, pool, word)


if __name__ == "__main__":
    main(*sys.argv[1:])
