"""The small programs (runner/cmd/applets) that the conformance suite puts into slots, so that an image needs none."""

from __future__ import annotations

from pathlib import Path

from hermes_exec.backends.runner_binary import find_program

DIRECTORY = Path(__file__).parent / "_applets"


def find_applets(os_name: str | None = None, arch: str | None = None) -> Path:
    """Return the file for a platform, named as Go or uname names it. None means this host.

    Raises:
        BackendUnavailable: If this installation has no file for the platform, or the file was changed.
    """
    return find_program(DIRECTORY, "applets", os_name, arch).path
