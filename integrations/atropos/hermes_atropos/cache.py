"""Directories of this host that are made once, by whichever process comes first, and are whole when they are there."""

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
    """Where an environment keeps what it has downloaded or made, when nothing else is said."""
    return Path.home() / ".cache" / "hermes-exec" / name


def digest(*parts: object) -> str:
    """A short name for values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_name(text: str) -> str:
    """A text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "__", text)[:_NAME_CHARS].lstrip(".") or "_"


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of that path against other threads and processes; the system gives it back when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("a") as file:
        lock_file(file, wait=True)
        yield


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`; where it is missing, `make(path)` makes it aside, and it is renamed into its place when it is whole.

    What a process that died had begun is removed by the next one.
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
