"""An image that is built of a folder with a Dockerfile, and named by the content of that folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

from hermes_exec.errors import ConfigError

SCHEME = "dockerfile:"
DOCKERFILE = "Dockerfile"
REPOSITORY = "hermes-exec-build"


def folder_of(image: str) -> Path | None:
    """The folder that an image is built of; None for one that has its name in a registry.

    Raises:
        ConfigError: there is no such folder, or no Dockerfile in it.
    """
    if not image.startswith(SCHEME):
        return None
    named = image.removeprefix(SCHEME)
    folder = Path(named).expanduser().absolute()
    if not named or not folder.is_dir():
        raise ConfigError(f"image={image!r}: there is no folder {named!r}: name one that holds a {DOCKERFILE}")
    if not (folder / DOCKERFILE).is_file():
        raise ConfigError(f"image={image!r}: there is no {DOCKERFILE} in {str(folder)!r}")
    return folder


def tag_of(folder: Path, platform: str | None, archive: IO[bytes] | None = None) -> str:
    """What the image of a folder is called on the engine; the context of its build is written to the archive. Blocking.

    Raises:
        ConfigError: the folder cannot be read.
    """
    from hermes_exec.backends.docker.context import pack

    with open(os.devnull, "wb") as nowhere:
        key = f"{pack(folder, nowhere if archive is None else archive)} {platform or ''}"
    return f"{REPOSITORY}:{hashlib.sha256(key.encode()).hexdigest()[:24]}"
