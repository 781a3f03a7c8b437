"""Images of tasks: the pool's image settings for each task's definition, and the tasks whose image is available."""

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
    """A task with a name."""

    @property
    def name(self) -> str:
        """The name of the task."""


TaskT = TypeVar("TaskT", bound=HasName)


class TaskImagesConfig(SandboxEnvConfig):
    """The options of an environment whose tasks have their own images."""

    uses_pool_image: ClassVar[bool] = False

    default_docker_image: str = Field(
        default="ubuntu:22.04", description="base of definitions that are based on a local .sif"
    )
    base_image: str = Field(default="", description="replaces the base in every definition")

    @property
    def pool_image(self) -> str | None:
        """The image of the pool, which backends with images require although no task runs in it."""
        other = None if self.backend_type in WITHOUT_IMAGES else self.base_image or self.default_docker_image
        return self.image or other

    def task_images(self) -> TaskImages:
        """Return the images of the environment's tasks."""
        return TaskImages(self.backend_type, base=self.base_image or None, default_base=self.default_docker_image)


class TaskSlot(NamedTuple):
    """The image and workdir to acquire a slot with. None means the pool's default."""

    image: str | None
    workdir: str | None


class RunnableTask(NamedTuple, Generic[TaskT]):
    """A task and the request for its slot."""

    task: TaskT
    request: TaskSlot


def check_own_ports(config: SandboxEnvConfig) -> None:
    """Raise ConfigError if slots share ports: services of two rollouts on the same port would spoil each other's
    reward. A `pool_config` file is not checked.
    """
    slots = config.slots_per_sandbox or (1 if config.backend_type == "docker" else None)
    if config.slots_network and config.pool_config is None and (slots != 1 or config.shares_host_network):
        other = "" if config.shares_host_network else ", or slots_per_sandbox 1"
        raise ConfigError(
            f"with the network on, slots of the backend {config.backend_type!r} share ports, so services of different "
            f"rollouts would conflict: set --env.network false{other}"
        )


class TaskImages:
    """The images of an environment's tasks, which the pool builds.

    `base` replaces the base in every definition. `default_base` only replaces a base that is a file on the machine
    where the definition was written.
    """

    def __init__(self, backend: str, *, base: str | None = None, default_base: str, cache: Path | None = None) -> None:
        self._backend = backend
        self._base = base
        self._default_base = default_base
        self._cache = cache or default_cache_dir("definitions")
        self._left_out: set[str] = set()

    async def resolve(self, directory: Path) -> TaskSlot:
        """Return the slot request for the definition in a directory (a Dockerfile or a container.def). Nothing is built
        yet.

        Raises:
            ConfigError: If the backend cannot use the image.
        """
        return await anyio.to_thread.run_sync(self._resolve, directory)

    async def resolve_tasks(
        self, pool: SandboxPool, tasks: Sequence[TaskT], find_image: Callable[[TaskT], Awaitable[TaskSlot]]
    ) -> list[RunnableTask[TaskT]]:
        """Return the tasks with their slot requests. Missing images are built, several at a time. A task whose image
        fails is left out, and a warning is logged once.
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
        """Return the reason why the backend cannot use the image, or an empty text. Nothing is built. Blocks."""
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
                f"the task of {directory} needs its own image, which the backend {self._backend!r} does not support: "
                "use docker or singularity, or leave the task out"
            )

    def _resolve(self, directory: Path) -> TaskSlot:
        if self._backend == "docker":
            return self._docker_request(directory)
        definition = self._read(directory, DEFINITION)
        if self._backend == "singularity":
            return self._singularity_request(directory, definition)
        self._check_usable(directory, definition)
        return TaskSlot(None if self._backend in WITHOUT_IMAGES else definition.base, None)

    def _read(self, directory: Path, prefer: str) -> Definition:
        definition = read_definition(directory, prefer)
        base = self._base or (self._default_base if definition.local_base else None)
        return definition.with_base(base) if base else definition

    def _docker_request(self, directory: Path) -> TaskSlot:
        original = (directory / DOCKERFILE).read_text("utf-8") if (directory / DOCKERFILE).is_file() else ""
        text = replace_base(original, self._base) if original and self._base else original
        try:
            definition = self._read(directory, DOCKERFILE)
        except ConfigError:  # Docker supports more than the conversion
            if not text:
                raise
        else:
            if definition.plain:
                return TaskSlot(definition.base, definition.workdir)
            text = text or definition.to_dockerfile()
        target = directory if text == original else self._keep_definition(directory, DOCKERFILE, text)
        return TaskSlot(f"{_DOCKERFILE_PREFIX}{target}", "image")

    def _singularity_request(self, directory: Path, definition: Definition) -> TaskSlot:
        if definition.plain:
            return TaskSlot(definition.base, definition.workdir)
        copies = any(step.kind == "copy" for step in definition.steps)
        if (directory / DEFINITION).is_file() and definition == read_definition(directory, DEFINITION) and not copies:
            return TaskSlot(str(directory / DEFINITION), definition.workdir)
        target = self._keep_definition(directory, DEFINITION, definition.to_singularity())
        return TaskSlot(str(target / DEFINITION), definition.workdir)

    def _keep_definition(self, directory: Path, name: str, text: str) -> Path:
        """Return a cached copy of the directory with another definition."""
        content = archive_directory(directory)
        target = self._cache / hashlib.sha256(text.encode() + content).hexdigest()[:16]

        def make(path: Path) -> None:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(path, filter="data")
            (path / name).unlink(missing_ok=True)
            # Singularity resolves paths from its working directory, not from the definition's.
            (path / name).write_text(_with_absolute_files(text, target) if name == DEFINITION else text, "utf-8")

        return make_once(target, make)


def _is_built(image: str) -> bool:
    return image.startswith(_DOCKERFILE_PREFIX) or image.endswith(".def")


def _with_absolute_files(text: str, directory: Path) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        inside = line == "%files" if line.startswith("%") else inside
        lines.append(f"    {directory}/{line.strip()}" if inside and line.startswith(" ") else line)
    return "\n".join(lines) + "\n"


def archive_directory(directory: Path) -> bytes:
    """Return a directory as a tar archive that is identical for identical content. Blocks."""
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
