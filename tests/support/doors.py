"""Environments for the tests of adapters (`tests/doors`): one for each target, with its pinned versions.

An environment has the target, the requirements of this project and pytest. It is outside of the clone, so that clones
share it: its name has a digest of its requirements. This checkout is on its path by `PYTHONPATH`, with its entry points
and the program `hermes-exec`, so that nothing is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOORS = ROOT / "tests" / "doors"
TEST_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "trio>=0.27")
INSTALL_S = 1800.0


class DoorClosed(Exception):
    """The environment of a target cannot be made here; the message is the reason."""


@dataclass(frozen=True)
class Door:
    """A target, from `tests/doors/<name>/door.toml`.

    Attributes:
        name: The directory of its tests.
        package: Our adapter, which mypy checks in the environment; None where the target needs none.
        python: The versions of Python that the target runs on, the preferred one first.
        requirements: Requirements of the environment, with the pinned target.
        extras: Extras of hermes-exec whose requirements are installed too.
        bare: Requirements that are installed without their own requirements.
        tools: Requirements of its tests.
    """

    name: str
    package: str | None
    python: tuple[str, ...]
    requirements: tuple[str, ...]
    extras: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    tools: tuple[str, ...] = TEST_TOOLS

    @classmethod
    def read(cls, name: str) -> Door:
        """Read the door of this name."""
        values: dict[str, Any] = tomllib.loads((DOORS / name / "door.toml").read_text("utf-8"))
        package = values.pop("package", None)
        return cls(name, package, **{key: tuple(value) for key, value in values.items()})


@dataclass(frozen=True)
class DoorEnvironment:
    """An environment that is ready: its interpreter, and the variables with which programs run in it."""

    python: Path
    env: dict[str, str]


def door_names() -> list[str]:
    """Return the names of all targets."""
    return sorted(path.parent.name for path in DOORS.glob("*/door.toml"))


def prepare(door: Door) -> DoorEnvironment:
    """Return the environment of a target; create it if there is none with these requirements.

    Raises:
        DoorClosed: If no suitable Python is on this machine, or a requirement cannot be installed.
    """
    interpreter = _find_python(door)
    wanted = sorted({*door.tools, *door.requirements, *_own_requirements(door.extras)})
    digest = hashlib.sha256("\n".join([str(interpreter), *wanted, "", *door.bare]).encode()).hexdigest()[:12]
    venv = cache_directory() / f"{door.name}-{digest}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with _lock(venv.with_suffix(".lock")):
        if not (venv / ".ready").exists():
            shutil.rmtree(venv, ignore_errors=True)
            _run([interpreter, "-m", "venv", str(venv)], f"{door.name}: no environment")
            _install(door, venv, wanted)
            (venv / ".ready").touch()
    return DoorEnvironment(venv / "bin" / "python", _variables(venv))


def prepare_node(name: str, packages: Sequence[str]) -> Path:
    """Return a directory with these packages of npm; install them if it is not there.

    Raises:
        DoorClosed: If npm is missing, or a package cannot be installed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DoorClosed(f"{name} needs npm: install Node.js")
    directory = cache_directory() / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.with_suffix(".lock")):
        if not (directory / ".ready").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), *packages]
            _run(install, f"{name}: packages were not installed")
            (directory / ".ready").touch()
    return directory


def cache_directory() -> Path:
    """Return the directory of the environments; `HERMES_DOORS` overrides it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HERMES_DOORS") or cache / "hermes-exec" / "venvs")


def _find_python(door: Door) -> str:
    found = subprocess.run([ROOT / ".ci" / "python", *door.python], capture_output=True, text=True, check=False)
    if found.returncode:
        raise DoorClosed(f"{door.name} needs Python {' or '.join(door.python)}: install one, for example with pyenv")
    return found.stdout.strip()


def _install(door: Door, venv: Path, wanted: list[str]) -> None:
    pip: list[str] = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if uv := shutil.which("uv", path=f"{ROOT / '.venv' / 'bin'}:{os.environ.get('PATH', '')}"):
        pip = [uv, "pip", "install", "-q", "--python", str(venv / "bin" / "python")]
    _run([*pip, *wanted], f"{door.name}: requirements were not installed")
    if door.bare:
        _run([*pip, "--no-deps", *door.bare], f"{door.name}: requirements were not installed")


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_S,
        check=False,
        env=pip_environment(),
    )
    if done.returncode:
        raise DoorClosed(f"{failure}: {done.stdout.strip()[-2000:]}")


def pip_environment() -> dict[str, str]:
    """Return this environment, with the index of pip for uv too."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    if "UV_DEFAULT_INDEX" not in env:
        pip = [str(ROOT / ".venv" / "bin" / "python"), "-m", "pip", "config", "get", "global.index-url"]
        index = env.get("PIP_INDEX_URL")
        if index is None:
            asked = subprocess.run(pip, capture_output=True, text=True, check=False)
            index = asked.stdout.strip() if asked.returncode == 0 else ""
        if index:
            env["UV_DEFAULT_INDEX"] = index
    return env


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def _own_requirements(extras: tuple[str, ...]) -> Iterator[str]:
    """Yield the requirements of hermes-exec and of its extras, and those of the extras that they name."""
    project = _project()["project"]
    yield from project["dependencies"]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            if own := re.fullmatch(r"hermes-exec\[(.*)\]", requirement):
                yield from _own_requirements(tuple(own[1].split(",")))
            else:
                yield requirement


def _variables(venv: Path) -> dict[str, str]:
    directories = [ROOT / name for name in _project()["tool"]["hatch"]["build"]["targets"]["wheel"]["dev-mode-dirs"]]
    metadata = _write_metadata()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join(map(str, [*directories, metadata]))
    env["PATH"] = os.pathsep.join([str(venv / "bin"), str(metadata / "bin"), env.get("PATH", os.defpath)])
    env["VIRTUAL_ENV"] = str(venv)
    return env


def _write_metadata() -> Path:
    """Write what an installation of this checkout would have: its entry points, and the program `hermes-exec`."""
    project = _project()["project"]
    directory = ROOT / ".cache" / "doors"
    groups: dict[str, dict[str, str]] = {"console_scripts": project["scripts"], **project["entry-points"]}
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) + "\n"
        for group, points in groups.items()
    )
    program = "#!/usr/bin/env python3\nfrom hermes_exec.cli.main import main\n\nmain()\n"
    described = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n"
    info = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    for name, content in (
        (f"{info}/METADATA", described),
        (f"{info}/entry_points.txt", text),
        ("bin/hermes-exec", program),
    ):
        _write(directory / name, content)
    (directory / "bin" / "hermes-exec").chmod(0o755)
    return directory


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text, "utf-8")
        beside.rename(path)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
