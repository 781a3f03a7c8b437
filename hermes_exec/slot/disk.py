"""Diagnosis of a full disk: the runner measures from outside the slot whether the slot itself filled it."""

from __future__ import annotations

import errno

from hermes_exec.errors import ErrorCause, ExecError, HostDiskFull
from hermes_exec.slot.answers import integer
from hermes_exec.slot.files import Files
from hermes_exec.slot.scope import SlotScope

TRIAL, TRIAL_BYTES = ".hermes-exec-room", 64 << 10


async def check_disk(scope: SlotScope, files: Files, trial: str) -> None:
    """Raise HostDiskFull if others have filled a disk of the slot.

    `trial` is the path of a file that is written and removed, because file systems report a used-up quota only on a
    write. A sandbox that its own holder ended has no disk to check: nothing is raised.
    """
    try:
        await _try_to_write(scope, files, trial)
        facts = await scope.disk_of_others() or scope.filled_by_others  # another slot may have freed space since
    except ExecError as error:
        if error.cause is not ErrorCause.POLICY:
            raise
        return
    scope.disk_full = scope.quota_used_up = False
    scope.filled_by_others = None
    if facts is not None:
        free, used = (integer(facts, name) >> 20 for name in ("free_bytes", "use_bytes"))
        raise HostDiskFull(
            f"the disk is full, but not with this slot's files: {free} MiB and {integer(facts, 'free_files')} files "
            f"are left, and the slot uses {used} MiB",
            sandbox=scope.sandbox,
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
