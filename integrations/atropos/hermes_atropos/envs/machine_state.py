"""Shared checks of a machine's state: tampered programs, and checks that fail because of the model's work."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping

from hermes_agent import CheckFailed, Verdict
from hermes_exec import Slot
from hermes_exec.errors import ExecError

_PRELOAD = "/etc/ld.so.preload"


async def score_with_control(slot: Slot, score: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Return the verdict of a check.

    If the check fails to reach a verdict, it is repeated in the reset slot. If it succeeds there, the model's work was
    the cause, and the work is not solved.

    Raises:
        CheckFailed: If the check fails in the reset slot too.
    """
    try:
        return await score()
    except CheckFailed as failed:
        await slot.kill_all()
        await slot.reset()
        await score()
        return Verdict(0.0, solved=False, output=f"{failed}; the check passes without the model's work")


async def find_tampering(slot: Slot, digests: Mapping[str, str]) -> str:
    """Return which of these programs (path to SHA-256) was changed, or an empty text. The runner reads them, not a
    program in the slot.
    """
    for path, digest in digests.items():
        try:
            content = await slot.files.read_bytes(path)
        except OSError as error:
            if isinstance(error, (ExecError, TimeoutError)):
                raise
            return f"{path} is gone: {error}"
        if hashlib.sha256(content).hexdigest() != digest:
            return f"{path} was changed during the task"
    try:
        # A relative link that is broken here may resolve in another working directory.
        await slot.files.stat(_PRELOAD, follow=False)
    except FileNotFoundError:
        return ""
    return f"{_PRELOAD} was created during the task"
