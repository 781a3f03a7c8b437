"""An image that is built of a folder with a Dockerfile, and named by the content of that folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from docker import DockerClient

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
        raise ConfigError(f"image={image!r}: there is no folder {str(folder)!r}: name one that holds a {DOCKERFILE}")
    if not (folder / DOCKERFILE).is_file():
        raise ConfigError(f"image={image!r}: there is no {DOCKERFILE} in {str(folder)!r}")
    return folder


def tag_of(folder: Path, platform: str | None) -> str:
    """What the image of a folder is called on the engine; blocking. ConfigError when the folder cannot be read."""
    with open(os.devnull, "wb") as nowhere:
        return _packed(folder, platform, nowhere)


@contextmanager
def build(
    client: DockerClient, folder: Path, platform: str | None, timeout_s: float
) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
    """Begin to build the image of a folder as it is now: its tag, and what the engine tells. Blocking."""
    with tempfile.TemporaryFile() as context:
        tag = _packed(folder, platform, context)
        context.seek(0)
        yield (
            tag,
            client.api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                platform=platform,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=max(1, round(timeout_s)),
            ),
        )


def _packed(folder: Path, platform: str | None, archive: IO[bytes]) -> str:
    from hermes_exec.backends.docker.context import pack

    key = f"{pack(folder, archive)} {platform or ''}"
    return f"{REPOSITORY}:{hashlib.sha256(key.encode()).hexdigest()[:24]}"
