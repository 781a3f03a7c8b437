"""Cached files and directories on this host. Each is created once, by whichever process comes first, and appears only
when complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_exec.file_lock import lock_file

_NAME_CHARS = 80


def default_cache_dir(name: str) -> Path:
    """Return the default cache directory of an environment."""
    return Path.home() / ".cache" / "hermes-exec" / name


def digest(*parts: object) -> str:
    """Return a short hash of values that can be converted to JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_name(text: str) -> str:
    """Return a text as a valid part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "__", text)[:_NAME_CHARS].lstrip(".") or "_"


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a path against other threads and processes. The system releases it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("a") as file:
        lock_file(file, wait=True)
        yield


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`, and create it first if it is missing.

    `make(path)` creates it under a temporary path, which is then renamed to `target`. Incomplete remains of a process
    that died are removed.
    """
    if target.exists():
        return target
    with hold_lock(target):
        if not target.exists():
            for dead in target.parent.glob(f".{target.name}.*.new"):
                shutil.rmtree(dead, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
            try:
                make(aside / "it")
                (aside / "it").rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target
