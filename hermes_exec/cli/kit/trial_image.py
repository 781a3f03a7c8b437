"""The image of a trial: the one that the user names, or a minimal one that is made for it and removed again."""

from __future__ import annotations

import io
import logging
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread

from hermes_exec.backends import runner_binary
from hermes_exec.errors import BackendUnavailable

log = logging.getLogger(__name__)

REPOSITORY = "hermes-exec-trial"
COMMAND = ["/runner", "version"]


@asynccontextmanager
async def trial_image(backend: str, image: str | None) -> AsyncIterator[tuple[str | None, str | list[str]]]:
    """Yield an image for this backend, and a command that does next to nothing in it.

    Raises:
        BackendUnavailable: the engine that would hold the image cannot be reached.
    """
    if image is not None or backend != "docker":
        yield image, "true"
        return
    name = await anyio.to_thread.run_sync(_make)
    try:
        yield name, COMMAND
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(_remove, name))


def _make() -> str:
    """Import an image that holds nothing but the runner, which needs no registry; without a daemon, only name one.

    The backend's own check then says what is wrong with the daemon.
    """
    name = f"{REPOSITORY}:{secrets.token_hex(6)}"
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return name
    try:
        client = docker.from_env(timeout=60)
    except DockerException:
        return name
    try:
        machine = str(client.info()["Architecture"])
        runner = runner_binary.path("linux", machine)
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            with tarfile.open(fileobj=archive, mode="w") as out:
                entry = tarfile.TarInfo("runner")
                entry.size, entry.mode = runner.stat().st_size, 0o755
                out.addfile(entry, io.BytesIO(runner.read_bytes()))
            archive.flush()
            repository, _, tag = name.partition(":")
            client.api.import_image_from_file(archive.name, repository=repository, tag=tag, changes=["ENV PATH=/"])
    except DockerException as error:
        raise BackendUnavailable(f"the Docker daemon does not import a trial image: {error}") from error
    finally:
        client.close()
    return name


def _remove(name: str) -> None:
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return
    try:
        client = docker.from_env(timeout=60)
        try:
            client.images.remove(name, force=True)
        finally:
            client.close()
    except DockerException as error:
        log.info("the trial image %s was not removed: %s", name, error)
