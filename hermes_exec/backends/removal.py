"""Removal of directory trees of this host, of any depth, without following a mount."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from hermes_exec.backends import runner_binary
from hermes_exec.errors import BackendUnavailable

logger = logging.getLogger(__name__)
NOT_REMOVED = "it could not be removed"


def remove_tree(path: Path, otherwise: Callable[[Path], object] | None = None) -> list[str]:
    """Remove a directory and its content; call `otherwise` for files that this user cannot remove.

    Return why something is left, which is also logged.
    """
    # Slots may nest directories deeper than Python can remove; these programs have no limit.
    _run("rm", "-rf", path)
    problems = _wipe(path)
    if problems and otherwise is not None:
        otherwise(path)
        problems = _wipe(path)
    if problems:
        logger.warning("%s could not be removed", path)
    return problems


def _wipe(path: Path) -> list[str]:
    """Remove the files that `rm` has left, and return why something is still left.

    `rm` fails in directories without write permission, and some versions fail at great depth.
    """
    output = b""
    if os.path.lexists(path):
        with contextlib.suppress(BackendUnavailable):
            output = _run(str(runner_binary.path()), "wipe", path, errors=subprocess.PIPE)
    if not os.path.lexists(path):
        return []
    lines = output.decode("utf-8", "replace").splitlines()
    return [line.removeprefix("runner wipe: ") for line in lines] or [NOT_REMOVED]


def _run(program: str, option: str, path: Path, errors: int = subprocess.DEVNULL) -> bytes:
    command: list[str | Path] = [shutil.which(program) or f"/bin/{program}", option, path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, check=False)
    return done.stderr or b""


def mounts_below(path: Path) -> list[str]:
    """Return the mounts below a directory. Removing the directory would empty them."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    mounts = (line.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape") for line in lines)
    return [mount for mount in mounts if mount.startswith(f"{path}/")]
