"""The image of a task: what the pool is to make of its definition, and which tasks have theirs."""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import anyio.to_thread
from pydantic import Field

from hermes_atropos.cache import default_cache_dir, make_once
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.image_definitions import (
    DEFINITION,
    DOCKERFILE,
    Definition,
    read_definition,
    replace_base,
)
from hermes_exec import ConfigError, ExecError, ImageError, LaunchTimeout, SandboxPool

logger = logging.getLogger(__name__)
WITHOUT_IMAGES = frozenset({"local", "ssh"})
_DOCKERFILE_PREFIX = "dockerfile:"


class HasName(Protocol):
    """A task."""

    @property
    def name(self) -> str:
        """What it is called."""


TaskT = TypeVar("TaskT", bound=HasName)


class TaskImagesConfig(SandboxEnvConfig):
    """The options of an environment whose tasks have images of their own."""

    uses_pool_image: ClassVar[bool] = False

    default_docker_image: str = Field(default="ubuntu:22.04", description="for definitions based on a local .sif")
    base_image: str = Field(default="", description="takes the place of the base that definitions name")

    @property
    def pool_image(self) -> str | None:
        """What backends with images want to be given, and no task is run in."""
        other = None if self.backend_type in WITHOUT_IMAGES else self.base_image or self.default_docker_image
        return self.image or other

    def task_images(self) -> TaskImages:
        """The images of its tasks."""
        return TaskImages(self.backend_type, base=self.base_image or None, default_base=self.default_docker_image)


class SlotRequest(NamedTuple):
    """What a slot of a task is asked for with; None: what the pool has."""

    image: str | None
    workdir: str | None


class RunnableTask(NamedTuple, Generic[TaskT]):
    """A task, and what its slot is asked for with."""

    task: TaskT
    request: SlotRequest


def check_own_ports(config: SandboxEnvConfig) -> None:
    """Raise ConfigError where slots share ports: two rollouts whose services want the same one would spoil each other's
    reward. What a file of `pool_config` says is not looked at.
    """
    slots = config.slots_per_sandbox or (1 if config.backend_type == "docker" else None)
    if config.slots_network and config.pool_config is None and (slots != 1 or config.shares_host_network):
        other = "" if config.shares_host_network else ", or slots_per_sandbox 1"
        raise ConfigError(
            f"with the network on, slots of the backend {config.backend_type!r} share ports here, and a service of one "
            f"rollout would stand in the way of another's: say --env.network false{other}"
        )


class TaskImages:
    """The images of the tasks of an environment, which the pool makes.

    `base` takes the place of the base that a definition names; `default_base` only that of a base which is a file of
    the machine where the definition was written.
    """

    def __init__(self, backend: str, *, base: str | None = None, default_base: str, cache: Path | None = None) -> None:
        self._backend = backend
        self._base = base
        self._default_base = default_base
        self._cache = cache or default_cache_dir("definitions")
        self._left_out: set[str] = set()

    async def resolve(self, directory: Path) -> SlotRequest:
        """The image of the definition in a directory (a Dockerfile or a container.def). Nothing is built yet.

        Raises ConfigError where the backend cannot have it.
        """
        return await anyio.to_thread.run_sync(self._resolve, directory)

    async def resolve_tasks(
        self, pool: SandboxPool, tasks: Sequence[TaskT], find_image: Callable[[TaskT], Awaitable[SlotRequest]]
    ) -> list[RunnableTask[TaskT]]:
        """The tasks with their images, which are built where they are not there, several at once. A task whose image
        cannot be had is left out, and why is told once.
        """
        runnable = []
        for task in tasks:
            if task.name not in self._left_out:
                try:
                    runnable.append(RunnableTask(task, await find_image(task)))
                except ConfigError as error:
                    self._leave_out(task, error)
        images = [
            item.request.image for item in runnable if item.request.image is not None and _is_built(item.request.image)
        ]
        errors = await pool.prefetch(images) if images else {}
        for item in runnable:
            failure = errors.get(item.request.image or "")
            if isinstance(failure, ConfigError | ImageError | LaunchTimeout):
                self._leave_out(item.task, failure)
            elif failure is not None:
                raise failure
        return [item for item in runnable if item.task.name not in self._left_out]

    def _leave_out(self, task: HasName, error: ExecError) -> None:
        self._left_out.add(task.name)
        logger.warning("the task %s is left out: %s", task.name, error)

    def refusal(self, directory: Path) -> str:
        """Why the backend cannot have the image, without building it; empty where it can; blocking."""
        try:
            if self._backend != "docker":
                self._check_usable(directory, self._read(directory, DEFINITION))
            elif not (directory / DOCKERFILE).is_file():
                self._read(directory, DEFINITION)
        except ConfigError as error:
            return str(error)
        return ""

    def _check_usable(self, directory: Path, definition: Definition) -> None:
        if self._backend != "singularity" and not definition.plain:
            raise ConfigError(
                f"the task of {directory} needs an image of its own, which the backend {self._backend!r} cannot have: "
                "use docker or singularity, or leave the task out"
            )

    def _resolve(self, directory: Path) -> SlotRequest:
        if self._backend == "docker":
            return self._docker_request(directory)
        definition = self._read(directory, DEFINITION)
        if self._backend == "singularity":
            return self._singularity_request(directory, definition)
        self._check_usable(directory, definition)
        return SlotRequest(None if self._backend in WITHOUT_IMAGES else definition.base, None)

    def _read(self, directory: Path, prefer: str) -> Definition:
        definition = read_definition(directory, prefer)
        base = self._base or (self._default_base if definition.local_base else None)
        return definition.with_base(base) if base else definition

    def _docker_request(self, directory: Path) -> SlotRequest:
        original = (directory / DOCKERFILE).read_text("utf-8") if (directory / DOCKERFILE).is_file() else ""
        text = replace_base(original, self._base) if original and self._base else original
        try:
            definition = self._read(directory, DOCKERFILE)
        except ConfigError:  # Docker can do more
            if not text:
                raise
        else:
            if definition.plain:
                return SlotRequest(definition.base, definition.workdir)
            text = text or definition.to_dockerfile()
        target = directory if text == original else self._keep_definition(directory, DOCKERFILE, text)
        return SlotRequest(f"{_DOCKERFILE_PREFIX}{target}", "image")

    def _singularity_request(self, directory: Path, definition: Definition) -> SlotRequest:
        if definition.plain:
            return SlotRequest(definition.base, definition.workdir)
        copies = any(step.kind == "copy" for step in definition.steps)
        if (directory / DEFINITION).is_file() and definition == read_definition(directory, DEFINITION) and not copies:
            return SlotRequest(str(directory / DEFINITION), definition.workdir)
        target = self._keep_definition(directory, DEFINITION, definition.to_singularity())
        return SlotRequest(str(target / DEFINITION), definition.workdir)

    def _keep_definition(self, directory: Path, name: str, text: str) -> Path:
        """A copy of the directory with another definition."""
        content = archive_directory(directory)
        target = self._cache / hashlib.sha256(text.encode() + content).hexdigest()[:16]

        def make(path: Path) -> None:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(path, filter="data")
            (path / name).unlink(missing_ok=True)
            # Singularity looks for the files where it is started, not where the definition is.
            (path / name).write_text(_with_absolute_files(text, target) if name == DEFINITION else text, "utf-8")

        return make_once(target, make)


def _is_built(image: str) -> bool:
    return image.startswith(_DOCKERFILE_PREFIX) or image.endswith(".def")


def _with_absolute_files(text: str, place: Path) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        inside = line == "%files" if line.startswith("%") else inside
        lines.append(f"    {place}/{line.strip()}" if inside and line.startswith(" ") else line)
    return "\n".join(lines) + "\n"


def archive_directory(directory: Path) -> bytes:
    """The directory as a tar archive that is the same for the same content; blocking."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(directory.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(directory)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isfile():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            elif entry.isdir() or entry.issym():
                archive.addfile(entry)
    return out.getvalue()
