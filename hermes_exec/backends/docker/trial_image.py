"""A minimal image for a trial, which needs no registry: it holds nothing but the runner."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from hermes_exec.backends import runner_binary
from hermes_exec.backends.docker.delivery import Entry, archive
from hermes_exec.backends.docker.engine import Engine
from hermes_exec.errors import ExecError

if TYPE_CHECKING:
    from docker import DockerClient

REPOSITORY = "hermes-exec-trial"
COMMAND = ["/runner", "version"]


@asynccontextmanager
async def trial_image(engine: Engine) -> AsyncIterator[tuple[str, list[str]]]:
    """See ``TrialImage.trial_image``."""
    name = f"{REPOSITORY}:{secrets.token_hex(6)}"
    await engine.call(lambda client: _make(client, name))
    try:
        yield name, COMMAND
    finally:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ExecError):
                await engine.call(lambda client: client.images.remove(name, force=True))


def _make(client: DockerClient, name: str) -> None:
    runner = runner_binary.path("linux", str(client.info()["Architecture"]))
    data = archive(Entry("runner", 0o755, runner.read_bytes()))
    repository, _, tag = name.partition(":")
    client.api.import_image_from_data(data, repository=repository, tag=tag, changes=["ENV PATH=/"])
