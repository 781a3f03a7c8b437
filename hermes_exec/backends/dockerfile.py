"""What ``dockerfile:DIR`` means as the name of an image: the folder that it is built of."""

from __future__ import annotations

from pathlib import Path

from hermes_exec.errors import ConfigError

SCHEME = "dockerfile:"
DOCKERFILE = "Dockerfile"


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
