"""Which suites, and how they come here: sources and wheels from the package index, kept in `.cache/packages`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "packages"
TOOLS = ("pytest==8.4.2", "pytest-timeout==2.4.0")
PYTHON = "3.11"
"""Of the wheels: all of them are pure Python, so that other versions import them as well."""


@dataclass(frozen=True)
class Suite:
    """A package whose source distribution carries its tests. `needs` are what they import besides."""

    name: str
    version: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The one folder of its source distribution."""
        return f"{self.name}-{self.version}"


SUITES = (
    Suite("ptyprocess", "0.7.0", ("tests",)),
    Suite("pexpect", "4.9.0", ("tests",), ("ptyprocess==0.7.0",)),
    Suite("sh", "2.4.0", ("tests/sh_test.py",)),
    Suite(
        "plumbum",
        "2.0.2",
        ("tests",),
        ("pytest-mock==3.15.1", "pytest-asyncio==1.2.0"),
        ("-o", "addopts="),
    ),
    Suite("portalocker", "4.4.2", ("portalocker_tests",), (), ("-o", "addopts=")),
)


def fetched(suite: Suite) -> Path:
    """A folder with the sources in `src` and everything that their tests import in `site`; made once.

    Raises:
        subprocess.CalledProcessError: the index cannot be reached, or has none of that version.
    """
    folder = CACHE / suite.folder
    if (folder / "ready").exists():
        return folder
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wanted = f"{suite.name}=={suite.version}"
    source = ["download", "--no-deps", "--no-binary", suite.name, "-d", str(folder / "sdist"), wanted]
    site = ["install", "--target", str(folder / "site"), "--upgrade", *TOOLS, *suite.needs, wanted]
    subprocess.run([*pip, *source], check=True)
    subprocess.run([*pip, *site], check=True)
    (archive,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (folder / suite.folder).rename(folder / "src")
    (folder / "ready").touch()
    return folder
