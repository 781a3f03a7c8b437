"""Where the runner binaries are that this installation carries, proven by their SHA-256."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hermes_exec.errors import BackendUnavailable

DIRECTORY = Path(__file__).parents[1] / "_runner"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv8": "arm64", "armv8l": "arm64"}
MEND = "run `pip install --force-reinstall hermes-exec`, or in a checkout `make runner`"


class RunnerBinary(NamedTuple):
    """One static program and the SHA-256 of its bytes."""

    path: Path
    sha256: str


def find_runner(os_name: str | None = None, arch: str | None = None) -> RunnerBinary:
    """The runner for a platform, in Go's or in uname's words; None is this host's.

    Raises:
        BackendUnavailable: this installation carries none, or its bytes are not those that were built.
    """
    system = (os_name or platform.system()).lower()
    machine = (arch or platform.machine()).lower()
    return _verified(f"runner-{system}-{ARCHITECTURES.get(machine, machine)}")


def path(os_name: str | None = None, arch: str | None = None) -> Path:
    """The file of ``find_runner``."""
    return find_runner(os_name, arch).path


def sha256(os_name: str | None = None, arch: str | None = None) -> str:
    """The hash of ``find_runner``."""
    return find_runner(os_name, arch).sha256


@cache
def _verified(name: str) -> RunnerBinary:
    file = DIRECTORY / name
    try:
        wanted = json.loads((DIRECTORY / "manifest.json").read_text("utf-8"))[name]
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except KeyError:
        built = ", ".join(sorted(p.name.removeprefix("runner-") for p in DIRECTORY.glob("runner-*")))
        raise BackendUnavailable(f"there is no runner for {name.removeprefix('runner-')}, only for {built}") from None
    except (OSError, ValueError, TypeError) as error:
        raise BackendUnavailable(f"the runner binary {name} is missing: {MEND}") from error
    if found != wanted:
        raise BackendUnavailable(f"the runner binary {name} is not the one that was built: {MEND}")
    return RunnerBinary(file, found)
