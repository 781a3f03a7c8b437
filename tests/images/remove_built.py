"""Removes the images that tests had built of directories with a Dockerfile: `python -m tests.images.remove_built`.

They are told by their label, which they have from the test image that their Dockerfile begins with: images that a user
of this machine had built stay, and so do those that a container is made of.
"""

from __future__ import annotations

import contextlib
import sys

import docker
from docker.errors import APIError, DockerException

from hermes_exec.backends.docker.build import REPOSITORY
from tests.images.build import LABEL


def remove_built(client: docker.DockerClient) -> int:
    """Remove them, and tell how many."""
    removed = 0
    for image in client.images.list(name=REPOSITORY, filters={"label": LABEL}):
        with contextlib.suppress(APIError):
            for tag in image.tags:
                client.images.remove(tag)
            removed += 1
    return removed


def main() -> int:
    """Say how many were removed."""
    try:
        print(f"images: removed {remove_built(docker.from_env(timeout=300))} that tests had built", file=sys.stderr)
    except DockerException as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
