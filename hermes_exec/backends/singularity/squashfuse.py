"""The program that mounts the file of an image for an ordinary user, and the owners that its files then have."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

NAMES = ("squashfuse_ll", "squashfuse")
"""Names of the program, in the order in which Apptainer looks for it."""
ANSWER_S = 30.0
OWNER_OPTION = "-o uid="
"""The option in the help of a `squashfuse_ll` that can give all files one owner. Apptainer looks for it there."""
WRAPPER = f"""#!/bin/sh
if [ $# = 0 ]; then echo '{OWNER_OPTION}N'; exit; fi
exec %s "$@"
"""


@lru_cache
def find_squashfuse(engine: str, path: str) -> str | None:
    """Return the program that Apptainer finds beside its own programs or in this search path; blocking."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [engine, "buildcfg", "LIBEXECDIR"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        path = f"{done.stdout.strip().removeprefix('LIBEXECDIR=')}/apptainer/bin:{path}"
    return next(filter(None, (shutil.which(name, path=path) for name in NAMES)), None)


def gives_owners(engine: str, path: str) -> bool:
    """Return whether the engine can give all files of a mounted image to the user; blocking.

    Without that, files belong to users who do not exist in the sandbox, so nobody can change them. Any `squashfuse`
    can, because FUSE's library does it; a `squashfuse_ll` can from version 0.2 on.
    """
    program = find_squashfuse(engine, path)
    return program is None or os.path.basename(program) == "squashfuse" or OWNER_OPTION in _help_of(program)


@lru_cache
def _help_of(program: str) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        return done.stdout + done.stderr
    return ""


def write_wrapper(directory: str, path: str) -> bool:
    """Write a `squashfuse_ll` that is `squashfuse`, for an engine that prefers the first; return whether there is one.

    The engine finds it if the directory is the first of its search path.
    """
    program = shutil.which("squashfuse", path=path)
    if program is None:
        return False
    wrapper = Path(directory, NAMES[0])
    wrapper.write_text(WRAPPER % shlex.quote(program), "utf-8")
    wrapper.chmod(0o700)
    return True


def has_subordinate_ids() -> bool:
    """Return whether `/etc/subuid` gives this user further ids, with which images keep their owners under fakeroot."""
    names = {str(os.getuid())}
    with suppress(KeyError):
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    try:
        lines = Path("/etc/subuid").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.partition(":")[0] in names for line in lines)
