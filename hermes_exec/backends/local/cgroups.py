"""Control groups that a killed runner of this host has left."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from pathlib import Path

from hermes_exec.backends.sandbox_directory import SandboxDirectory

logger = logging.getLogger(__name__)
GROUPS_FILE = "groups"
NAME = r"hermes-exec-[0-9a-f]+-"


def remove_groups(directory: SandboxDirectory, patience_s: float = 5.0) -> None:
    """Remove the cgroups that a runner has recorded. A cgroup with processes is kept."""
    try:
        beginnings = (directory.sandbox / GROUPS_FILE).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return  # a runner that ends by itself removes the file and the cgroups
    deadline = time.monotonic() + patience_s
    for beginning in beginnings:
        parent, name = os.path.split(os.path.normpath(beginning))
        if not re.fullmatch(NAME, name):
            continue
        for group in Path(parent).glob(f"{name}*"):
            _remove_group(group, deadline)


def _remove_group(group: Path, deadline: float) -> None:
    while True:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno == errno.EBUSY and time.monotonic() < deadline:
                time.sleep(0.01)  # its last processes are ending
                continue
            logger.debug("%s could not be removed: %s", group, error.strerror)
        return
