"""Wheels for the Python of the slots, downloaded once on the driver's host without running code of a package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from hermes_atropos.cache import digest, make_once
from hermes_atropos.envs.swe_smith_oracle.instance import InstanceUnusable

PROBE = """
import json, platform, sys, sysconfig
libc, version = platform.libc_ver()
print(json.dumps([sys.version_info[:2], sysconfig.get_platform(), version if libc == "glibc" else ""]))
"""
_BUILD_REQUIREMENTS = ("setuptools", "wheel", "editables")
"""Requirements of build backends besides the repository's own. The last one is for editable installs."""
_DOWNLOAD_S = 600.0


@dataclass(frozen=True)
class SlotPython:
    """The Python of the slots: version, platform and glibc version (empty: another libc)."""

    version: tuple[int, int]
    platform: str
    glibc: str

    @property
    def name(self) -> str:
        """The name of its directory in a virtual environment."""
        return f"python{self.version[0]}.{self.version[1]}"

    def tags(self) -> list[str]:
        """Return the platform tags of compatible wheels."""
        system, _, machine = self.platform.partition("-")
        if system != "linux":
            return [re.sub(r"[-.]", "_", self.platform)]
        tags = [f"linux_{machine}"]
        if self.glibc:
            newest = int(self.glibc.split(".")[1])
            return [*tags, f"manylinux2014_{machine}", *(f"manylinux_2_{n}_{machine}" for n in range(17, newest + 1))]
        return [*tags, *(f"musllinux_1_{n}_{machine}" for n in (1, 2))]


def fetch_wheels(requirements: Sequence[str], python: SlotPython, cache: Path) -> Path:
    """Return a local directory with wheels of pip and of everything that these requirements need. Blocks.

    Raises:
        InstanceUnusable: If there are none for the slots' Python.
    """
    wanted = sorted({"pip", *requirements, *(("tomli", "exceptiongroup") if python.version < (3, 11) else ())})
    target = cache / "wheels" / digest(wanted, python.version, python.platform, python.glibc)

    def make(path: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += [
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={'.'.join(map(str, python.version))}",
        ]
        command += [f"--platform={tag}" for tag in python.tags()]
        try:
            done = subprocess.run(
                [*command, "--dest", str(path), *wanted],
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InstanceUnusable(f"wheels could not be downloaded within {_DOWNLOAD_S:g} s") from error
        if done.returncode != 0:
            raise InstanceUnusable(f"no wheels of {', '.join(wanted)}: {done.stderr.strip()[-500:]}")

    return make_once(target, make)


def read_requirements(tree: Path) -> list[str]:
    """Return the declared build and runtime requirements of a repository, as far as they can be read without running
    code.

    Raises:
        InstanceUnusable: If its pyproject.toml cannot be read.
    """
    needed = list(_BUILD_REQUIREMENTS)
    project: dict[str, object] = {}
    if (tree / "pyproject.toml").is_file():
        try:
            settings = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))
        except ValueError as error:
            raise InstanceUnusable(f"its pyproject.toml: {error}") from error
        needed += _texts(settings.get("build-system", {}).get("requires"))
        project = settings.get("project", {})
    if "dependencies" in project:
        needed += _texts(project["dependencies"])
    elif (tree / "PKG-INFO").is_file():
        facts = Parser().parsestr((tree / "PKG-INFO").read_text("utf-8", "replace"), headersonly=True)
        needed += [text for text in facts.get_all("Requires-Dist", []) if "extra ==" not in text]
    return needed


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
