"""Checks that no other user decides where a path leads, like OpenSSH's StrictModes for keys."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import tempfile
from functools import cache
from pathlib import Path

from hermes_exec.errors import ConfigError

ALL_IDS = ["0", "0", "4294967295"]
"""The map of a user namespace in which each user has a number."""


def unsafe_reason(path: Path) -> str | None:
    """Return why another user could exchange something at a path without links; None if only root can.

    This user or root must own each directory on the way. Others may not write to it, unless it is sticky or lies below
    a directory of this user that others cannot enter. The latter does not count for root: root's slots have users of
    their own, whose working directories are below it.
    """
    why: str | None = None
    for directory in (path, *path.parents):
        status = directory.lstat()
        if status.st_uid not in (0, os.geteuid(), _nobody()):
            return f"{directory} belongs to another user ({status.st_uid})"
        if status.st_uid == os.geteuid() != 0 and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            why = None
        elif why is None and _others_write(directory, status) and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            why = f"others may write to {directory} (mode {mode:04o}, not sticky): chmod go-w, or +t"
    return why


def _others_write(directory: Path, status: os.stat_result) -> bool:
    """Return whether the mode of a directory lets others write to it."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private(directory, status.st_gid)


def _is_private(directory: Path, group: int) -> bool:
    """Return whether only root and this user have the group rights of a directory: many systems make such a group for
    each user. With an ACL, these rights belong to the users that it names.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.getxattr(directory, "system.posix_acl_access")
        return False
    ours, accounts = {0, os.geteuid()}, pwd.getpwall()
    names = {account.pw_name for account in accounts if account.pw_uid in ours}
    users = {account.pw_uid for account in accounts if account.pw_gid == group}
    try:
        return bool(users) and users <= ours and names.issuperset(grp.getgrgid(group).gr_mem)
    except KeyError:
        return False


@cache
def _nobody() -> int:
    """Return the uid of all users without a number in this user namespace, or -1 if each has one."""
    try:
        if Path("/proc/self/uid_map").read_text("ascii").split() != ALL_IDS:
            return int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except (OSError, ValueError):
        pass
    return -1


def make_directories(path: Path) -> None:
    """Make a directory and its parents. Others may pass them and not write to them, with any umask."""
    for directory in reversed((path, *path.parents)):
        if not directory.exists():
            directory.mkdir(0o755, exist_ok=True)


def make_private_directory(prefix: str, where: str | None = None) -> Path:
    """Make a temporary directory for this user alone.

    Raises:
        OSError: If it cannot be made.
        ConfigError: If others could replace it.
    """
    parent = Path(where or tempfile.gettempdir()).resolve()
    if why := unsafe_reason(parent):
        raise ConfigError(f"no private directory can be made in {parent}: {why}; set TMPDIR to another one")
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
