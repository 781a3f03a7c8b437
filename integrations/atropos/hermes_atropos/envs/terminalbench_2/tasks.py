"""Tasks of TerminalBench: rows of the public dataset, and readable directories that can be packed into rows.

`python -m hermes_atropos.envs.terminalbench_2.tasks DIRECTORY` prints the tasks in a directory as rows of JSON.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import math
import re
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_atropos import datasets
from hermes_atropos.cache import make_once
from hermes_atropos.task_images import archive_directory
from hermes_exec import ConfigError

UNPACKED_BYTES = 512 << 20
"""The maximum size of one archive of a row when unpacked."""
MEMBERS = 20_000


@dataclass(frozen=True)
class TerminalBenchTask:
    """A task: the instruction, the image, and the archives (tar.gz) of its definition and its tests."""

    name: str
    category: str
    instruction: str
    image: str
    environment_tar: bytes
    tests_tar: bytes
    test_sh: str
    task_timeout_s: float | None = None
    """The task's own limit of an episode."""
    test_timeout_s: float | None = None
    """The task's own limit of its tests."""


def parse_task(row: Mapping[str, Any], where: str) -> TerminalBenchTask:
    """Return the task in a row.

    Raises:
        ConfigError: If a field is wrong; the message names the row and the field.
    """
    name = datasets.read_field(row, "task_name", str, where)
    where = f"{where} ({name})"
    task = TerminalBenchTask(
        name=name,
        category=datasets.read_field(row, "category", str, where, ""),
        instruction=datasets.read_field(row, "instruction", str, where),
        image=datasets.read_field(row, "docker_image", str, where, ""),
        environment_tar=_decode(row, "environment_tar", where),
        tests_tar=_decode(row, "tests_tar", where),
        test_sh=datasets.read_field(row, "test_sh", str, where, ""),
        task_timeout_s=_read_timeout(row, "task_timeout_s", where),
        test_timeout_s=_read_timeout(row, "test_timeout_s", where),
    )
    if not task.image and not task.environment_tar:
        raise ConfigError(f"{where}: neither docker_image nor environment_tar is set")
    if not task.test_sh and not task.tests_tar:
        raise ConfigError(f"{where}: neither test_sh nor tests_tar is set")
    return task


def load_tasks(dataset: str, split: str) -> list[TerminalBenchTask]:
    """Return all tasks of a dataset. `shipped`, directories of readable tasks and a readable task are packed first.
    Blocks.
    """
    directory = (
        datasets.data_directory("terminalbench_2") if dataset == datasets.SHIPPED else Path(dataset).expanduser()
    )
    paths = _task_directories(directory)
    if paths:
        return [parse_task(_pack_task(path), f"the task {str(path)!r}") for path in paths]
    rows = datasets.load_dataset_rows(dataset, split)
    return [parse_task(row, f"row {number} of {dataset!r}") for number, row in enumerate(rows, 1)]


def pack_tasks(directory: Path) -> list[dict[str, Any]]:
    """Return the tasks in a directory as rows. The same content gives the same rows.

    A task is a directory with `instruction.md`, `environment/` with a Dockerfile, and `tests/` with `test.sh`. Its
    facts are in `task.json` (`category`, and `docker_image` if the image is in a registry) or, as harbor's tasks have
    them, in `task.toml`. Other files are ignored.
    """
    paths = _task_directories(directory)
    if not paths:
        raise ConfigError(f"{str(directory)!r} has no directory with an instruction.md")
    return [_pack_task(path) for path in paths]


def _task_directories(directory: Path) -> list[Path]:
    """Return the directory itself if it is a task, else the tasks in it."""
    names = ("instruction.md", "task.toml")
    if any((directory / name).is_file() for name in names):
        return [directory]
    return sorted({path.parent for name in names for path in directory.glob(f"*/{name}")})


def _pack_task(task: Path) -> dict[str, Any]:
    try:
        script = task / "tests" / "test.sh"
        return {
            "task_name": task.resolve().name,
            **_read_facts(task),
            "instruction": (task / "instruction.md").read_text("utf-8").strip(),
            "environment_tar": _pack(task / "environment"),
            "tests_tar": _pack(task / "tests"),
            "test_sh": script.read_text("utf-8") if script.is_file() else "",
        }
    except (OSError, ValueError) as error:
        raise ConfigError(f"the task {str(task)!r} cannot be read: {error}") from error


def _read_facts(task: Path) -> dict[str, Any]:
    """Return the facts of `task.toml`, in harbor's sections, or else of `task.json`."""
    toml, plain = task / "task.toml", task / "task.json"
    if not toml.is_file():
        facts = _mapping(json.loads(plain.read_text("utf-8"))) if plain.is_file() else {}
        return {name: facts.get(name, "") for name in ("category", "docker_image")}
    sections = tomllib.loads(toml.read_text("utf-8"))
    return {
        "category": _mapping(sections.get("metadata")).get("category"),
        "docker_image": _mapping(sections.get("environment")).get("docker_image"),
        "task_timeout_s": _mapping(sections.get("agent")).get("timeout_sec"),
        "test_timeout_s": _mapping(sections.get("verifier")).get("timeout_sec"),
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read_timeout(row: Mapping[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, int | float) or not 0 < value < math.inf):
        raise ConfigError(f"{where}: the field {name!r} must be a number of seconds, not {value!r:.60}")
    return value


def unpack(archive: bytes, target: Path, where: str) -> None:
    """Unpack an archive of a row into a new directory. Blocks.

    Raises:
        ConfigError: If the archive leaves the directory by names or links, contains devices, or exceeds UNPACKED_BYTES
            or MEMBERS. Nothing is written outside the directory.
    """
    target.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as source:
            total = 0
            for number, member in enumerate(source, 1):
                total += member.size
                if total > UNPACKED_BYTES or number > MEMBERS:
                    raise ConfigError(
                        f"{where}: the archive contains more than {UNPACKED_BYTES} bytes or {MEMBERS} files"
                    )
                source.extract(member, target, set_attrs=True, filter="data")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where}: the archive cannot be unpacked: {type(error).__name__}: {error}") from error


def environment_directory(task: TerminalBenchTask, cache: Path) -> Path:
    """Return the directory of the task's definition, which is unpacked once per content. Blocks."""
    target = cache / f"{task.name}-{hashlib.sha256(task.environment_tar).hexdigest()[:16]}"
    where = f"{task.name}: environment_tar"
    root = make_once(target, lambda path: unpack(task.environment_tar, path, where))
    inner = root / "environment"
    return inner if not (root / "Dockerfile").is_file() and (inner / "Dockerfile").is_file() else root


def find_workdir(task: TerminalBenchTask) -> str | None:
    """Return the last WORKDIR of the task's Dockerfile, or None. For backends that do not know the image's."""
    if not task.environment_tar:
        return None
    with tempfile.TemporaryDirectory(prefix="hermes-exec-environment-") as scratch:
        directory = Path(scratch) / "environment"
        unpack(task.environment_tar, directory, f"{task.name}: environment_tar")
        texts = [path.read_text("utf-8", "replace") for path in directory.rglob("Dockerfile") if path.is_file()]
    matches = re.findall(r"(?im)^\s*WORKDIR\s+(/\S*)", texts[0]) if texts else []
    return str(matches[-1]) if matches else None


def _pack(directory: Path) -> str:
    return (
        base64.b64encode(gzip.compress(archive_directory(directory), mtime=0)).decode("ascii")
        if directory.is_dir()
        else ""
    )


def _decode(row: Mapping[str, Any], name: str, where: str) -> bytes:
    value = row.get(name)
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode("".join(datasets.read_field(row, name, str, where, "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where}: the field {name!r} must be base64: {error}") from error


def main() -> None:
    """Print tasks as rows."""
    for row in pack_tasks(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
