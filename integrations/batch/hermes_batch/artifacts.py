"""The files that a run collects from its slots (`collect`): their places in the directory of the run."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from hermes_agent.artifacts import safe_name
from hermes_batch.units import Unit
from hermes_exec.private_files import open_private

ARTIFACTS = "artifacts"
_DIRECTORY = re.compile(r".*-[0-9a-f]{8}-\d+")
_LARGEST_MASKED_BYTES = 32 << 20


def artifact_directory(unit: Unit) -> str:
    """Return the directory of a sample's artifacts, relative to the run.

    The digest in its name keeps prompts with equal ids apart.
    """
    digest = hashlib.sha256(unit.task.group.encode()).hexdigest()[:8]
    return f"{ARTIFACTS}/{safe_name(unit.task.name)}-{digest}-{unit.sample}"


def remove_artifacts(out: Path) -> None:
    """Remove the artifacts of an earlier run."""
    for directory in (out / ARTIFACTS).glob("*"):
        if _DIRECTORY.fullmatch(directory.name) and directory.is_dir() and not directory.is_symlink():
            shutil.rmtree(directory)


def remove_directory(directory: Path) -> None:
    """Remove the artifacts of an earlier attempt at a sample."""
    shutil.rmtree(directory, ignore_errors=True)


def mask_artifacts(directory: Path, paths: Iterable[str], mask: Callable[[str], str]) -> None:
    """Mask secrets in the artifacts of a directory that are text, up to 32 MiB each.

    Raises:
        OSError: If an artifact cannot be written.
    """
    for path in paths:
        artifact = directory / path
        if artifact.stat().st_size > _LARGEST_MASKED_BYTES:
            continue
        try:
            text = artifact.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if (masked := mask(text)) != text:
            with open(artifact, "wb", opener=open_private) as file:
                file.write(masked.encode())
