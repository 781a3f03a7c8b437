"""Image names of the form `dockerfile:DIR`: an image that is built from a directory."""

from __future__ import annotations

from pathlib import Path

from hermes_exec.errors import ConfigError

SCHEME = "dockerfile:"
DOCKERFILE = "Dockerfile"


def directory_of(image: str) -> Path | None:
    """Return the directory that an image is built from; None for the name of an image in a registry.

    Raises:
        ConfigError: If there is no such directory, or no Dockerfile in it.
    """
    if not image.startswith(SCHEME):
        return None
    named = image.removeprefix(SCHEME)
    directory = Path(named).expanduser().absolute()
    if not named or not directory.is_dir():
        raise ConfigError(f"image={image!r}: there is no directory {named!r}: name a directory with a {DOCKERFILE}")
    if not (directory / DOCKERFILE).is_file():
        raise ConfigError(f"image={image!r}: there is no {DOCKERFILE} in {str(directory)!r}")
    return directory
