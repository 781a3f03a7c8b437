"""Rate limit for launches, shared by all programs of this user on this host."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import anyio

from hermes_exec.backends.owner import own_labels
from hermes_exec.file_lock import wait_for_lock
from hermes_exec.pool.private_directory import make_pool_directory

logger = logging.getLogger(__name__)
LOCK_TIMEOUT_S = 1.0
"""Wait no longer for the lock: a program that was stopped while it holds the lock must not block the others."""
POLL_S = 0.005


async def wait_for_turn(backend: str, per_s: float, directory: Path | None = None) -> None:
    """Wait until one more sandbox of this backend may be launched, so that at most `per_s` are launched per second.

    Return at once if the file of the rate limit cannot be kept.
    """
    try:
        path = (directory or make_pool_directory()) / f"{backend}.pace"
        with path.open("a+", encoding="ascii") as file:
            with anyio.move_on_after(LOCK_TIMEOUT_S) as scope:
                await wait_for_lock(file, POLL_S)
            if scope.cancelled_caught:
                return
            boot, now = own_labels("").boot_id, time.monotonic()
            file.seek(0)
            fields = file.read().split()
            turn = max(now, float(fields[1])) if len(fields) == 2 and fields[0] == boot else now
            file.truncate(0)
            file.write(f"{boot} {turn + 1 / per_s:.6f}")
    except (OSError, ValueError) as error:
        logger.info("launches are not rate-limited together with other programs: %s", error)
        return
    await anyio.sleep(max(0.0, turn - time.monotonic()))
