"""Meaning of an image's name: an existing file or directory, or a source to build from."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hermes_exec.backends.helpers import helper_environment
from hermes_exec.errors import ConfigError, ImageError, LaunchTimeout

ARCHIVES = ("docker-archive:", "oci-archive:")
TRANSPORTS = (*ARCHIVES, "docker-daemon:", "oci:")
DAEMON_S = 30.0


class ImageSource(NamedTuple):
    """A source of an image: the engine's argument, and a key for its content."""

    argument: str
    content: str


def find_image(name: str, *, mounts_files: bool) -> Path | ImageSource:
    """Return the path of an image that is used as it is, or its source; blocking. `mounts_files`: whether this user can
    mount the file of an image.

    Raises:
        ImageError: If it names a missing file.
        ConfigError: If it is built from a Dockerfile.
    """
    if name.startswith("dockerfile:"):
        raise ConfigError(f"image={name!r} is for the docker backend: name a definition (a .def file)")
    if "://" in name or name.startswith(TRANSPORTS):
        return ImageSource(name, _content(name))
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        return path
    if path.suffix == ".def" and path.is_file():
        return ImageSource(str(path), _definition(path))
    if path.is_file():
        return path if mounts_files else ImageSource(str(path), _hash(path))
    if name.startswith(("/", ".", "~")) or path.suffix in {".sif", ".def", ".img", ".sqsh"}:
        raise ImageError(f"there is no image at {path}")
    return ImageSource(f"docker://{name}", f"docker://{name}")


def is_foreign_directory(name: str) -> bool:
    """Return whether an image is a directory of another user."""
    path = Path(name).expanduser()
    return path.is_dir() and path.stat().st_uid != os.geteuid()


def _content(name: str) -> str:
    if name.startswith(ARCHIVES):
        path, _, tag = name.partition(":")[2].partition(":")
        if not os.path.isfile(path):
            raise ImageError(f"there is no image at {os.path.abspath(path)}")
        return f"{_hash(Path(path))}:{tag}"
    if name.startswith("oci:"):
        # The index names the manifest of each tag by its digest.
        path, _, tag = name.partition(":")[2].partition(":")
        index = Path(path, "index.json")
        if not index.is_file():
            raise ImageError(f"there is no image at {os.path.abspath(path)}: it has no index.json")
        return f"{hashlib.sha256(index.read_bytes()).hexdigest()}:{tag}"
    if name.startswith("docker-daemon:"):
        return _daemon_image(name.partition(":")[2].removeprefix("//"))
    return name


def _daemon_image(reference: str) -> str:
    argv, env = ["docker", "image", "inspect", "--format", "{{.Id}}", reference], helper_environment("DOCKER_.*")
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DAEMON_S, check=False)
    except subprocess.TimeoutExpired as error:  # the name alone could match an older cached image
        raise LaunchTimeout(f"the Docker daemon did not describe {reference!r} within {DAEMON_S:g} s") from error
    except OSError:
        return reference
    return done.stdout.strip() if done.returncode == 0 else reference


def _definition(path: Path) -> str:
    """Return a digest of a definition: its text, and the files that it copies or starts from.

    Like the engine, this finds the files from the working directory.
    """
    text = path.read_text("utf-8", "replace")
    sections = re.findall(r"^%files[^\n]*\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL)
    words = [line for section in sections for line in section.splitlines()]
    if re.search(r"^bootstrap:\s*localimage", text, re.MULTILINE | re.IGNORECASE):
        words += re.findall(r"^from:\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    parts = [text]
    for line in words:
        for name in glob.glob(os.path.expandvars(_first_word(line))):
            parts += (f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in _below(Path(name)))
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _first_word(line: str) -> str:
    try:
        return next(iter(shlex.split(line, comments=True)), "")
    except ValueError:
        return line.strip()


def _below(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            if each.is_file():
                yield each, each.stat()


def _hash(path: Path) -> str:
    status = path.stat()
    return _hash_of(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=256)
def _hash_of(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
