"""A small file system for the check that fills one."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from hermes_exec.testing.conformance.registry import NotGiven

SIZE_MB = 64


@asynccontextmanager
async def small_disk(directory: Path) -> AsyncIterator[Path]:
    """Mount a file system of 64 MiB below the directory for as long as the block lasts; every user may enter it.

    Raises:
        NotGiven: this process may not mount, or the programs for it are missing.
    """
    image, mount = directory / "disk.img", directory / "disk"
    missing = [program for program in ("mkfs.ext4", "mount", "umount") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        raise NotGiven(
            f"not fired: no small disk can be made ({'no ' + ', '.join(missing) if missing else 'not root'})"
        )
    with image.open("wb") as file:
        file.truncate(SIZE_MB << 20)
    mount.mkdir()
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        done = await anyio.run_process(command, check=False)
        if done.returncode != 0:
            raise NotGiven(f"not fired: {' '.join(command[:1])}: {done.stderr.decode(errors='replace').strip()}")
    try:
        for path in (directory, mount):
            path.chmod(0o755)
        yield mount
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.run_process(["umount", "-l", str(mount)], check=False)
