"""The directory of this host in which the pools of a user find each other."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def pool_directory(uid: int | None = None) -> Path:
    """Where the pools of a user (default: this one) have it, whether it is there or not."""
    return Path(tempfile.gettempdir()) / f"hermes-exec.{os.geteuid() if uid is None else uid}"


def make_pool_directory() -> Path:
    """That of this user, which is made if it is not there.

    Raises:
        OSError: it cannot be made, or is not this user's alone.
    """
    path = pool_directory()
    with suppress(FileExistsError):
        path.mkdir(0o700)
    if not is_private(path, os.geteuid()):
        raise PermissionError(errno.EPERM, "its directory is not this user's alone")
    return path


def is_private(path: Path, uid: int) -> bool:
    """Whether it is a directory that only this user can do anything in."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid and not facts.st_mode & 0o077
