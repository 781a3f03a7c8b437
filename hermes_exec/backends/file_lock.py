"""A lock that is held by one program at a time, by a file."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio

logger = logging.getLogger(__name__)
POLL_S = 0.1


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[bool]:
    """Hold the lock of a path, on all hosts that share its file system; its file stands beside the path.

    False where no file can be locked: then some may do the same at once.
    """
    held = True
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_name(f"{path.name}.lock").open("ab"))
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await anyio.sleep(POLL_S)
                else:
                    break
        except OSError as error:
            logger.info("%s is not locked: %s", path, error)
            held = False
        yield held
