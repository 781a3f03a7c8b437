"""Files of a run, which are their owner's alone: what models and programs wrote is in them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file so that only its owner can read and write it (mode 0600), also where it was there before: an
    `opener` for `open`.
    """
    file = os.open(path, flags, 0o600)
    restrict_to_owner(file)
    return file


def restrict_to_owner(file: int | str | os.PathLike[str]) -> None:
    """Take from others what they may do with a file of this user. Devices and pipes stay as they are."""
    facts = os.stat(file)
    if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o077:
        with suppress(OSError):  # another user's, or a file system without modes
            os.chmod(file, stat.S_IMODE(facts.st_mode) & ~0o077)


def make_directory(path: Path) -> None:
    """Make a directory that only its owner can enter, with those above it that are missing; one that is there stays as
    it is.

    Raises:
        OSError: It cannot be made, or something else has its name.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(0o700, exist_ok=True)
