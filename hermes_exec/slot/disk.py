"""Whose doing a full disk is: asked of the runner, which sees it from outside of the slot."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

from hermes_exec.errors import ErrorCause, ExecError, HostDiskFull
from hermes_exec.slot.answers import integer
from hermes_exec.slot.files import Files
from hermes_exec.slot.scope import SlotScope

DISK_S = 60.0
TRIAL, TRIAL_BYTES = ".hermes-exec-room", 64 << 10


async def filled_by_others(scope: SlotScope) -> dict[str, Any] | None:
    """Return what the runner measured where a disk of the slot is nearly full, or a quota is used up, and the slot's
    own files are few; else None.
    """
    facts = await scope.call("slot.disk", {"refused": scope.quota_used_up}, timeout_s=DISK_S)
    return facts if facts.get("nearly_full") is True and facts.get("by_others") is True else None


async def check_disk(scope: SlotScope, files: Files, trial: str, kill_all: Callable[[], Awaitable[object]]) -> None:
    """Raise HostDiskFull where others have filled a disk of the slot. `trial` is a path for a file that is written and
    removed: file systems do not tell of their quotas otherwise.

    A sandbox that its own tenant ended has no disk to check, and no failure of others: nothing is raised.
    """
    try:
        await _check_disk(scope, files, trial, kill_all)
    except ExecError as error:
        if error.cause is not ErrorCause.POLICY:
            raise


async def _check_disk(scope: SlotScope, files: Files, trial: str, kill_all: Callable[[], Awaitable[object]]) -> None:
    await _try_to_write(scope, files, trial)
    facts = await filled_by_others(scope)
    if facts is not None:
        # Files that were removed while a process of the slot holds them open are not seen: then there is room again.
        await kill_all()
        scope.quota_used_up = False
        await _try_to_write(scope, files, trial)
        facts = await filled_by_others(scope)
    scope.disk_full = scope.quota_used_up = False
    if facts is not None:
        free, used = (integer(facts, name) >> 20 for name in ("free_bytes", "use_bytes"))
        raise HostDiskFull(
            f"the disk is full, and not of this slot's files: {free} MiB and {integer(facts, 'free_files')} files are "
            f"left, and the slot has {used} MiB there"
        )


async def _try_to_write(scope: SlotScope, files: Files, trial: str) -> None:
    try:
        await files.write_bytes(trial, bytes(TRIAL_BYTES))
    except OSError as error:
        scope.quota_used_up |= error.errno == errno.EDQUOT
    try:
        await files.remove(trial, missing_ok=True)
    except OSError:
        return
