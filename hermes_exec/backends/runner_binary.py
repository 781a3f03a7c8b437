"""The Go programs of this installation, found by platform and checked by SHA-256."""

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
CHECKOUT = (Path(__file__).parents[2] / "runner" / "main.go").is_file()
MEND = "run `make runner`" if CHECKOUT else "run `pip install --force-reinstall hermes-exec`"


class RunnerBinary(NamedTuple):
    """A static program and the SHA-256 of its bytes."""

    path: Path
    sha256: str


def find_runner(os_name: str | None = None, arch: str | None = None) -> RunnerBinary:
    """Return the runner for a platform, in Go's or uname's terms. None is this host's.

    Raises:
        BackendUnavailable: If this installation has none for it, or the file was changed.
    """
    return find_program(DIRECTORY, "runner", os_name, arch)


def path(os_name: str | None = None, arch: str | None = None) -> Path:
    """Return the file of `find_runner`."""
    return find_runner(os_name, arch).path


def find_program(directory: Path, program: str, os_name: str | None = None, arch: str | None = None) -> RunnerBinary:
    """Return a Go program of this installation for a platform, like `find_runner`."""
    system = (os_name or platform.system()).lower()
    machine = (arch or platform.machine()).lower()
    return _verify(directory, program, f"{system}/{ARCHITECTURES.get(machine, machine)}")


@cache
def _verify(directory: Path, program: str, target: str) -> RunnerBinary:
    name = f"{program}-{target.replace('/', '-')}"
    file = directory / name
    try:
        expected = json.loads((directory / "manifest.json").read_text("utf-8"))[name]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except KeyError:
        files = sorted(directory.glob(f"{program}-*"))
        built = ", ".join(file.name.removeprefix(f"{program}-").replace("-", "/") for file in files)
        more = f": run `make runner PLATFORMS={target}`" if CHECKOUT else ""
        raise BackendUnavailable(f"there is no {program} for {target}, only for {built}{more}") from None
    except (OSError, ValueError, TypeError) as error:
        raise BackendUnavailable(f"the binary {name} is missing: {MEND}") from error
    if digest != expected:
        raise BackendUnavailable(f"the binary {name} was changed after its build: {MEND}")
    return RunnerBinary(file, digest)
