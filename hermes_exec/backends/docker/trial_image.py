"""A minimal image for a trial, with nothing but the runner and without a registry."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from hermes_exec.backends import runner_binary
from hermes_exec.backends.docker.delivery import ArchiveEntry, archive
from hermes_exec.backends.docker.engine import DockerEngine
from hermes_exec.errors import ExecError

if TYPE_CHECKING:
    from docker import DockerClient

REPOSITORY = "hermes-exec-trial"
COMMAND = ["/runner", "version"]


@asynccontextmanager
async def trial_image(engine: DockerEngine) -> AsyncIterator[tuple[str, list[str]]]:
    """See `HasTrialImage.trial_image`."""
    name = await engine.call(make_image)
    try:
        yield name, COMMAND
    finally:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ExecError):
                await engine.call(lambda client: remove_image(client, name))


def remove_image(client: DockerClient, name: str) -> None:
    """Remove an image of `make_image`, even while a container of it exists."""
    client.api.remove_image(name, force=True)


def make_image(client: DockerClient) -> str:
    """Make an image with nothing but `/runner`, without a registry, and return its name."""
    runner = runner_binary.path("linux", str(client.info()["Architecture"]))
    data = archive(ArchiveEntry("runner", 0o755, runner.read_bytes()))
    tag = secrets.token_hex(6)
    client.api.import_image_from_data(data, repository=REPOSITORY, tag=tag, changes=["ENV PATH=/"])
    return f"{REPOSITORY}:{tag}"
