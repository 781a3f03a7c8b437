"""A plain container for the other contenders."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from benchmarks.contender import ContenderMissing
from tests.images.build import ImageBuildError, ensure

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container as DockerContainer

T = TypeVar("T")
THREADS = 64
LABELS = {"io.hermes-exec.bench": "1"}


class Container:
    """A running container and the SDK client that reaches it."""

    def __init__(self, client: docker.DockerClient, container: DockerContainer) -> None:
        self.client = client
        self.container = container
        self._threads = anyio.CapacityLimiter(THREADS)

    async def call(self, function: Callable[..., T], *args: Any, **more: Any) -> T:
        """Call the blocking SDK in a thread."""
        return await anyio.to_thread.run_sync(partial(function, *args, **more), limiter=self._threads)

    async def exec(self, argv: list[str]) -> bytes:
        """Run a program with the SDK and return its output."""
        code, output = await self.call(self.container.exec_run, argv)
        assert code == 0, output
        return b"".join([output] if isinstance(output, bytes) else output)

    async def put(self, directory: str, name: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file with the SDK's archive upload."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as out:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            out.addfile(entry, io.BytesIO(data))
        assert await self.call(self.container.put_archive, directory, archive.getvalue())

    async def get(self, path: str) -> bytes:
        """Read a file with the SDK's archive download."""
        chunks, _ = await self.call(self.container.get_archive, path)
        whole = await self.call(b"".join, chunks)
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            content = archive.extractfile(archive.getmembers()[0])
            assert content is not None
            return content.read()


def ensure_image() -> str:
    """Return the name of the image that all contenders in containers use.

    Raises:
        ContenderMissing: If Docker is not available, or the image cannot be built.
    """
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        raise ContenderMissing("the Docker SDK is not installed") from error
    try:
        client = docker.from_env(timeout=300)
        try:
            return ensure(client, "debian")
        finally:
            client.close()
    except (DockerException, ImageBuildError) as error:
        raise ContenderMissing(str(error)) from error


@asynccontextmanager
async def run_container(
    command: list[str] | None = None, ports: dict[str, Any] | None = None, volumes: list[str] | None = None
) -> AsyncIterator[Container]:
    """Yield a container of the common image that runs `command`, without a network unless it publishes ports.

    Raises:
        ContenderMissing: If Docker is not available, or the image cannot be built.
    """
    name = await anyio.to_thread.run_sync(ensure_image)
    import docker

    client = docker.from_env(timeout=120, max_pool_size=THREADS)
    create = partial(
        client.containers.create,
        name,
        command or ["sleep", "3600"],
        init=True,
        network_mode="bridge" if ports else "none",
        ports=ports,
        volumes=volumes,
        environment={"LANG": "C.UTF-8"},  # as in a slot; without a locale, bash is a fifth faster
        labels=LABELS,
    )
    container = await anyio.to_thread.run_sync(create)
    try:
        await anyio.to_thread.run_sync(container.start)
        yield Container(client, container)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(container.remove, force=True, v=True))
            client.close()
