"""Files and directories of a run, which only their owner may read: they contain texts of models and programs."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file with mode 0600, and restrict an existing one to its owner; an `opener` for `open`."""
    file = os.open(path, flags, 0o600)
    restrict_to_owner(file)
    return file


def restrict_to_owner(file: int | str | os.PathLike[str]) -> None:
    """Revoke the rights of others on a file of this user. Devices and pipes stay unchanged."""
    facts = os.stat(file)
    if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o077:
        with suppress(OSError):  # another user's file, or a file system without modes
            os.chmod(file, stat.S_IMODE(facts.st_mode) & ~0o077)


def make_directory(path: Path) -> None:
    """Create a directory that only its owner can enter, with missing parents. An existing one stays unchanged.

    Raises:
        OSError: If it cannot be created, or the path is not a directory.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(0o700, exist_ok=True)
