"""Directories that other users of this host may pass, as pytest's own cannot be."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def let_others_pass(tmp_path: Path) -> Path:
    """Open the way to pytest's directory of a test; the directory."""
    for directory in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        directory.chmod(0o711)
    return tmp_path


@contextmanager
def open_directory(prefix: str) -> Iterator[Path]:
    """A directory of its own in /tmp."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made)
