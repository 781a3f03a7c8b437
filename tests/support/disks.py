"""A disk of 64 MiB, and another program that fills it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_BYTES = 64 << 20


@contextmanager
def small_disk(path: Path, *options: str, size_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """Mount a file system of its own at a path, with more options; RuntimeError where that is refused."""
    path.mkdir()
    named = ",".join((f"size={size_bytes}", "mode=1777", *options))
    mount = ["mount", "-t", "tmpfs", "-o", named, "small-disk", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, *within: str) -> None:
    """Use up the disk at a path, as another program would; `within` is a command that runs others elsewhere."""
    subprocess.run([*within, "dd", "if=/dev/zero", f"of={path}/others", "bs=1M"], capture_output=True, check=False)


def empty(path: Path) -> None:
    """Give back what `fill` took."""
    (path / "others").unlink()
