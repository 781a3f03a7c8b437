"""File locks that one program holds at a time, until it closes the file or ends."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any

import anyio

logger = logging.getLogger(__name__)
POLL_S = 0.1


def lock_file(file: IO[Any], *, wait: bool = False) -> bool:
    """Lock a file, on all hosts that share its file system. Return False if it is locked, unless `wait` is set.

    Raises:
        OSError: If the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a program holds the lock of a file. False if there is no file, or its file system has no locks."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def wait_for_lock(file: IO[Any], poll_s: float = POLL_S) -> None:
    """Lock a file as soon as it is free. Raises as `lock_file`."""
    while not lock_file(file):  # noqa: ASYNC110 - other programs send no events
        await anyio.sleep(poll_s)


@asynccontextmanager
async def hold_lock(path: Path) -> AsyncIterator[bool]:
    """Hold the lock of a path, in a file beside it, and yield whether it is locked.

    Yields False if the file system has no locks: others may then run at the same time.
    """
    held = True
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            await wait_for_lock(stack.enter_context(path.with_name(f"{path.name}.lock").open("ab")))
        except OSError as error:
            logger.info("%s is not locked: %s", path, error)
            held = False
        yield held
