"""The small programs (runner/cmd/applets) that the conformance suite puts into slots, so that an image needs none."""

from __future__ import annotations

from pathlib import Path

from hermes_exec.backends.runner_binary import find_program

DIRECTORY = Path(__file__).parent / "_applets"


def find_applets(os_name: str | None = None, arch: str | None = None) -> Path:
    """The file for a platform, in Go's or in uname's words; None is this host's.

    Raises:
        BackendUnavailable: this installation carries none, or its bytes are not those that were built.
    """
    return find_program(DIRECTORY, "applets", os_name, arch).path
