"""The image of a container: looked up, fetched by the policy with progress, and what it says of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.from_thread
import anyio.to_thread

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.engine import Engine, mapped, status_of
from hermes_exec.backends.image_errors import not_fetched
from hermes_exec.errors import ExecError, ImageError, LaunchTimeout, QuotaExceeded
from hermes_exec.results import PullProgress

if TYPE_CHECKING:
    from docker import DockerClient

Progress = Callable[[PullProgress], None]


class ImageFacts(NamedTuple):
    """What an image says of itself."""

    name: str
    id: str
    os: str
    arch: str
    user: str | None
    workdir: str


class Images:
    """The images of one engine, each fetched by one task at a time."""

    def __init__(self, engine: Engine, config: DockerConfig) -> None:
        self._engine = engine
        self._config = config
        self._locks: dict[str, anyio.Lock] = {}
        self._fetched: set[str] = set()

    async def find(self, name: str) -> ImageFacts | None:
        """The image, if the engine has it."""
        return await self._engine.call(lambda client: _inspect(client, name))

    async def check(self, name: str) -> None:
        """ImageError when the image is not there and the policy forbids to fetch it."""
        if self._config.pull_policy == "never" and await self.find(name) is None:
            raise ImageError(f"the image {name!r} is not on this engine, and pull_policy is 'never'")

    async def ensure(self, name: str, timeout_s: float, on_progress: Progress | None) -> ImageFacts:
        """The image, fetched if the policy says so.

        Raises:
            ImageError: it is not there, and may not or cannot be fetched.
            LaunchTimeout: fetching it took longer than ``timeout_s``.
        """
        policy = self._config.pull_policy
        async with self._locks.setdefault(name, anyio.Lock()):
            found = await self.find(name)
            fetch = found is None or (policy == "always" and name not in self._fetched)
            if fetch and policy != "never":
                await self._pull(name, timeout_s, on_progress)
                self._fetched.add(name)
                found = await self.find(name)
        if found is None:
            await self.check(name)
            raise ImageError(f"the image {name!r} was fetched and is still not on this engine")
        return found

    async def _pull(self, name: str, timeout_s: float, on_progress: Progress | None) -> None:
        if name.startswith("sha256:"):
            raise ImageError(f"the image {name!r} is not on this engine, and an id cannot be fetched")
        left = threading.Event()

        def work(client: DockerClient) -> None:
            _pull(client, name, self._config.platform, on_progress, left)

        try:
            with anyio.fail_after(timeout_s):
                # Not the engine's own limiter: an abandoned pull must not hold up other calls.
                await anyio.to_thread.run_sync(lambda: self._engine.call_now(work), abandon_on_cancel=True)
        except TimeoutError as error:
            raise LaunchTimeout(f"the image {name!r} was not there within pull_timeout_s={timeout_s:g}") from error
        finally:
            left.set()


def _inspect(client: DockerClient, name: str) -> ImageFacts | None:
    from docker.errors import ImageNotFound

    try:
        found: Mapping[str, Any] = client.images.get(name).attrs
    except ImageNotFound:
        return None
    config: Mapping[str, Any] = found.get("Config") or {}
    user = config.get("User") or None
    plain = None if user in {"0", "root", "0:0", "root:root"} else user
    system, arch = found.get("Os") or "linux", found.get("Architecture") or "amd64"
    return ImageFacts(name, found["Id"], system, arch, plain, config.get("WorkingDir") or "/")


def _pull(
    client: DockerClient, name: str, platform: str | None, on_progress: Progress | None, left: threading.Event
) -> None:
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(name)
    try:
        with mapped():
            events = client.api.pull(repository, tag=tag or "latest", stream=True, decode=True, platform=platform)
            layers: dict[str, tuple[int, int]] = {}
            with closing(events):
                for event in events:
                    if left.is_set():
                        return
                    _on_event(name, event, layers, on_progress)
    except ExecError as error:
        if isinstance(error, (ImageError, QuotaExceeded)) or status_of(error) is None:
            raise
        raise not_fetched(name, str(error)) from error


def _on_event(
    name: str, event: Mapping[str, Any], layers: dict[str, tuple[int, int]], on_progress: Progress | None
) -> None:
    if "error" in event:
        raise not_fetched(name, str(event["error"]))
    detail = event.get("progressDetail") or {}
    if event.get("status") == "Downloading" and detail.get("total"):
        layers[str(event.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
    if on_progress is not None:
        current, total = (sum(column) for column in zip(*layers.values(), strict=True)) if layers else (0, 0)
        progress = PullProgress(name, str(event.get("status", "")), current, total)
        anyio.from_thread.run_sync(on_progress, progress)
