"""What checks of a machine's state share: programs that must be as they were, and checks that the work itself stops."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping

from hermes_agent import CheckFailed, Verdict
from hermes_exec import Slot
from hermes_exec.errors import ExecError

_PRELOAD = "/etc/ld.so.preload"


async def score_with_control(slot: Slot, score: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """The verdict. Where the check does not come to one it is made in the slot as it was at the beginning: when it does
    there, it was the model's work that it ran into, which is not solved. Raises CheckFailed when it does not.
    """
    try:
        return await score()
    except CheckFailed as failed:
        await slot.kill_all()
        await slot.reset()
        await score()
        return Verdict(0.0, solved=False, output=f"{failed}; without the model's work it is not so")


async def find_tampering(slot: Slot, digests: Mapping[str, str]) -> str:
    """What of these programs (path to SHA-256) is not as it was; empty where all are. They are read by the runner, not
    by programs of the slot.
    """
    for path, digest in digests.items():
        try:
            content = await slot.files.read_bytes(path)
        except OSError as error:
            if isinstance(error, (ExecError, TimeoutError)):
                raise
            return f"{path} is not there any more: {error}"
        if hashlib.sha256(content).hexdigest() != digest:
            return f"{path} is not the program that the task began with"
    try:
        # A link that leads nowhere here leads somewhere in another working directory.
        await slot.files.stat(_PRELOAD, follow=False)
    except FileNotFoundError:
        return ""
    return f"{_PRELOAD} was not there before"
