"""Which suites, and how they come here: sources and wheels from the package index, kept in `.venv/packages`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

# Not in .cache, which building the docs empties.
CACHE = Path(__file__).resolve().parents[2] / ".venv" / "packages"
TOOLS = ("pytest==8.4.2", "pytest-timeout==2.4.0")


@dataclass(frozen=True)
class Suite:
    """A package whose source distribution carries its tests.

    `needs` are what they import besides: pure Python or built for the stable ABI, so that any Python imports them.
    `seconds` is about how long it takes. One with `terminal` has a controlling terminal as its input, as it has with a
    developer who types `pytest`; others have no input and no terminal.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    seconds: int
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    terminal: bool = False

    @property
    def directory(self) -> str:
        """The one directory of its source distribution."""
        return f"{self.name}-{self.version}"


SUITES = (
    Suite("ptyprocess", "0.7.0", ("tests",), 15),
    Suite("pexpect", "4.9.0", ("tests",), 250, ("ptyprocess==0.7.0",)),
    Suite("sh", "2.4.0", ("tests/sh_test.py",), 80),
    Suite(
        "plumbum",
        "2.0.2",
        ("tests",),
        40,
        ("pytest-mock==3.15.1", "pytest-asyncio==1.2.0", "psutil==7.1.3"),
        ("-o", "addopts="),
        terminal=True,
    ),
    Suite(
        "portalocker",
        "4.4.2",
        ("portalocker_tests",),
        60,
        (
            "pytest-rerunfailures==16.1",
            "fakeredis==2.32.1",
            "redis==7.1.0",
            "async-timeout==5.0.1",
            "typing_extensions==4.15.0",
        ),
        ("-o", "addopts="),
    ),
)


def fetched(suite: Suite) -> Path:
    """A directory with the sources, in one of the package's name, and all that their tests import, in `site`; made
    once.

    Raises:
        subprocess.CalledProcessError: the index cannot be reached, or has none of that version.
    """
    directory = CACHE / suite.directory
    recipe = hashlib.sha256(repr((suite.name, suite.version, suite.needs, TOOLS)).encode()).hexdigest()
    ready = directory / "ready"
    if ready.exists() and ready.read_text() == recipe:
        return directory
    if directory.exists():
        shutil.rmtree(directory)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wanted = f"{suite.name}=={suite.version}"
    source = ["download", "--no-deps", "--no-binary", suite.name, "-d", str(directory / "sdist"), wanted]
    site = ["install", "--no-warn-conflicts", "--target", str(directory / "site"), *TOOLS, *suite.needs, wanted]
    subprocess.run([*pip, *source], check=True)
    subprocess.run([*pip, *site], check=True)
    (archive,) = (directory / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    (directory / suite.directory).rename(directory / suite.name)
    ready.write_text(recipe)
    return directory
