"""The image of a container: looked up, fetched or built with progress, and its facts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import anyio.from_thread

from hermes_exec.backends.docker.build import tag_of
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.engine import DockerEngine, status_of
from hermes_exec.backends.dockerfile import directory_of
from hermes_exec.backends.image_errors import build_error, fetch_error
from hermes_exec.errors import ExecError, ImageError, LaunchTimeout, QuotaExceeded
from hermes_exec.file_lock import hold_lock
from hermes_exec.results import PullProgress

if TYPE_CHECKING:
    from docker import DockerClient

Progress = Callable[[PullProgress], None]
T = TypeVar("T")
BUILD: Any = {"custom_context": True, "decode": True, "rm": True, "forcerm": True}
"""Options of a build: its context is an archive, its events are objects, and containers of steps are removed."""
LOG_CHARS = 4096
"""Most characters of a build's log to keep."""


class ImageFacts(NamedTuple):
    """Facts of an image from its metadata."""

    name: str
    id: str
    os: str
    arch: str
    user: str | None
    workdir: str


class DockerImages:
    """The images of one engine. One task at a time fetches an image, and one program at a time builds it."""

    def __init__(self, engine: DockerEngine, config: DockerConfig) -> None:
        self._engine = engine
        self._config = config
        self._locks: dict[str, anyio.Lock] = {}
        self._fetched: set[str] = set()
        self._tags: dict[str, str] = {}

    async def find(self, name: str) -> ImageFacts | None:
        """Return the image's facts if the engine has it."""
        return await self._engine.call(lambda client: _inspect(client, name))

    async def check(self, name: str) -> None:
        """Check that the image exists or may be fetched.

        Raises:
            ImageError: If it is missing and the policy forbids fetching it.
        """
        if self._config.pull_policy == "never" and await self.find(await self._tag(name)) is None:
            raise ImageError(f"the image {name!r} is not on this engine, and pull_policy is 'never'")

    async def ensure(self, name: str, timeout_s: float, on_progress: Progress | None) -> ImageFacts:
        """Return the image's facts, after fetching or building it as the policy requires.

        Raises:
            ImageError: If it is missing, and may not or cannot be fetched or built.
            ConfigError: If the directory that it is built from is missing, or cannot be read.
            LaunchTimeout: If it took longer than `timeout_s`.
        """
        try:
            with anyio.fail_after(timeout_s):
                async with self._locks.setdefault(name, anyio.Lock()):
                    return await self._ensure(name, timeout_s, on_progress)
        except TimeoutError as error:
            raise LaunchTimeout(f"the image {name!r} was not there within pull_timeout_s={timeout_s:g}") from error

    async def _ensure(self, name: str, timeout_s: float, on_progress: Progress | None) -> ImageFacts:
        await self.check(name)
        directory = directory_of(name)
        if directory is not None:
            return await self._ensure_built(name, directory, timeout_s, on_progress)
        facts = await self.find(name)
        if facts is None or (self._config.pull_policy == "always" and name not in self._fetched):
            await self._pull(name, on_progress)
            self._fetched.add(name)
            facts = await self.find(name)
        return _require_facts(name, facts)

    async def _ensure_built(
        self, name: str, directory: Path, timeout_s: float, on_progress: Progress | None
    ) -> ImageFacts:
        tag = await self._tag(name)
        facts = await self.find(tag)
        if facts is None:
            async with hold_lock(Path.home() / ".cache" / "hermes-exec" / "builds" / tag):
                facts = await self.find(tag)
                if facts is None:
                    self._tags[name] = await self._build(name, directory, timeout_s, on_progress)
                    facts = await self.find(self._tags[name])
        return _require_facts(name, facts)

    async def _tag(self, name: str) -> str:
        """Return the engine's name of an image. For a built image it depends on the directory's content at first
        use.
        """
        directory = directory_of(name)
        if directory is None:
            return name
        if name not in self._tags:
            self._tags[name] = await self._engine.call(lambda _: tag_of(directory, self._config.platform))
        return self._tags[name]

    async def _build(self, name: str, directory: Path, timeout_s: float, on_progress: Progress | None) -> str:
        """Build the directory's current content and return its tag."""
        platform, failed = self._config.platform, partial(build_error, name)

        def work(client: DockerClient) -> str:
            with tempfile.TemporaryFile() as context:
                tag = tag_of(directory, platform, context)
                context.seek(0)
                wait_s = max(1, round(timeout_s))
                events = client.api.build(fileobj=context, tag=tag, platform=platform, timeout=wait_s, **BUILD)
                _read_events(name, events, on_progress, failed)
            return tag

        return await self._follow(work, failed)

    async def _pull(self, name: str, on_progress: Progress | None) -> None:
        if name.startswith("sha256:"):
            raise ImageError(f"the image {name!r} is not on this engine, and an id cannot be fetched")
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(name)
        platform, failed = self._config.platform, partial(fetch_error, name)

        def work(client: DockerClient) -> None:
            events = client.api.pull(repository, tag=tag or "latest", stream=True, decode=True, platform=platform)
            _read_events(name, events, on_progress, failed)

        await self._follow(work, failed)

    async def _follow(self, work: Callable[[DockerClient], T], failed: Callable[[str], ExecError]) -> T:
        try:
            return await self._engine.follow(work)
        except ExecError as error:
            if isinstance(error, (ImageError, QuotaExceeded)) or status_of(error) is None:
                raise
            raise failed(str(error)) from error


def _require_facts(name: str, facts: ImageFacts | None) -> ImageFacts:
    if facts is None:
        raise ImageError(f"the image {name!r} was made ready and is still not on this engine")
    return facts


def _inspect(client: DockerClient, name: str) -> ImageFacts | None:
    from docker.errors import ImageNotFound

    try:
        attributes: Mapping[str, Any] = client.images.get(name).attrs
    except ImageNotFound:
        return None
    config: Mapping[str, Any] = attributes.get("Config") or {}
    user = config.get("User") or None
    plain = None if user in {"0", "root", "0:0", "root:root"} else user
    system, arch = attributes.get("Os") or "linux", attributes.get("Architecture") or "amd64"
    return ImageFacts(name, attributes["Id"], system, arch, plain, config.get("WorkingDir") or "/")


def _read_events(
    name: str,
    events: Generator[Mapping[str, Any]],
    on_progress: Progress | None,
    failed: Callable[[str], ExecError],
) -> None:
    """Read the events of a pull or a build until its end. Its last messages go into the error."""
    layers: dict[str, tuple[int, int]] = {}
    log = ""
    with closing(events):
        for event in events:
            stream = re.sub(r"\x1b\[\d*m", "", str(event.get("stream") or ""))
            log = (log + stream)[-LOG_CHARS:]
            if "error" in event:
                raise failed(f"{log}\n{event['error']}".strip())
            detail = event.get("progressDetail") or {}
            if event.get("status") == "Downloading" and detail.get("total"):
                layers[str(event.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
            status = str(event.get("status") or stream).strip().rpartition("\n")[2]
            if on_progress is not None and status:
                current, total = (sum(layer[part] for layer in layers.values()) for part in (0, 1))
                anyio.from_thread.run_sync(on_progress, PullProgress(name, status, current, total))
