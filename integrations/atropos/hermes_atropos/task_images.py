"""The image of a task: made of its definition, once by content, in the way of the pool's backend."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from hermes_atropos.cache import default_cache_dir, made
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.image_definitions import (
    DEFINITION,
    DOCKERFILE,
    Definition,
    based_on,
    read_definition,
)
from hermes_exec import ConfigError, ImageError

_PORTS_OF_THE_HOST = frozenset({"local", "ssh", "singularity"})
WITHOUT_IMAGES = frozenset({"local", "ssh"})
_REPOSITORY = "hermes-exec-task"
_OUR_DOCKERFILE = ".hermes-exec.Dockerfile"
TaskT = TypeVar("TaskT")


class TaskImage(NamedTuple):
    """What a slot of a task is asked for with; None: what the pool has."""

    image: str | None
    workdir: str | None


class PlacedTask(NamedTuple, Generic[TaskT]):
    """A task, and what its slot is asked for with."""

    task: TaskT
    at: TaskImage


def pool_image(backend: str, image: str) -> str | None:
    """The image that a pool is given because backends with images want one, although every slot names its own."""
    return None if backend in WITHOUT_IMAGES else image


def check_own_ports(config: SandboxEnvConfig) -> None:
    """Raise ConfigError where slots share ports: two rollouts whose services want the same one would spoil each other's
    reward. What a file of `pool_config` says is not looked at.
    """
    slots = config.slots_per_sandbox or (1 if config.backend == "docker" else None)
    if config.network and config.pool_config is None and (slots != 1 or config.backend in _PORTS_OF_THE_HOST):
        other = "" if config.backend in _PORTS_OF_THE_HOST else ", or slots_per_sandbox 1"
        raise ConfigError(
            f"with the network on, slots of the backend {config.backend!r} share ports here, and a service of one "
            f"rollout would stand in the way of another's: say --env.network false{other}"
        )


class TaskImages:
    """The images of the tasks of an environment.

    `base` takes the place of the base that a definition names; `default_base` only that of a base which is a file of
    the machine where the definition was written.
    """

    def __init__(self, backend: str, *, base: str | None = None, default_base: str, cache: Path | None = None) -> None:
        self._backend = backend
        self._base = base
        self._default_base = default_base
        self._cache = cache or default_cache_dir("definitions")
        self._ready: dict[Path, TaskImage] = {}
        self._locks: dict[Path, anyio.Lock] = {}

    async def of(self, folder: Path) -> TaskImage:
        """The image of the definition in a folder (a Dockerfile or a container.def), built if it is not there.

        Raises ConfigError where the backend cannot have it, ImageError when the build fails.
        """
        async with self._locks.setdefault(folder, anyio.Lock()):
            if folder not in self._ready:
                self._ready[folder] = await anyio.to_thread.run_sync(self._made, folder)
            return self._ready[folder]

    def refusal(self, folder: Path) -> str:
        """Why the backend cannot have the image, without building it; empty where it can; blocking."""
        try:
            if self._backend != "docker":
                self._usable(folder, self._read(folder, DEFINITION))
            elif not (folder / DOCKERFILE).is_file():
                self._read(folder, DEFINITION)
        except ConfigError as error:
            return str(error)
        return ""

    def _usable(self, folder: Path, definition: Definition) -> None:
        if self._backend != "singularity" and not definition.plain:
            raise ConfigError(
                f"the task of {folder} needs an image of its own, which the backend {self._backend!r} cannot have: "
                "use docker or singularity, or leave the task out"
            )

    def _made(self, folder: Path) -> TaskImage:
        if self._backend == "docker":
            return self._for_docker(folder)
        definition = self._read(folder, DEFINITION)
        if self._backend == "singularity":
            return self._for_singularity(folder, definition)
        self._usable(folder, definition)
        return TaskImage(None if self._backend in WITHOUT_IMAGES else definition.base, None)

    def _read(self, folder: Path, prefer: str) -> Definition:
        definition = read_definition(folder, prefer)
        base = self._base or (self._default_base if definition.local_base else None)
        return definition.with_base(base) if base else definition

    def _for_docker(self, folder: Path) -> TaskImage:
        as_it_is = (folder / DOCKERFILE).read_text("utf-8") if (folder / DOCKERFILE).is_file() else None
        try:
            definition = self._read(folder, DOCKERFILE)
        except ConfigError:
            if as_it_is is None:
                raise
            text = based_on(as_it_is, self._base) if self._base else as_it_is
        else:
            if definition.plain:
                return TaskImage(definition.base, definition.workdir)
            text = definition.dockerfile()
            if as_it_is is not None:
                text = based_on(as_it_is, self._base) if self._base else as_it_is
        return TaskImage(_built_by_docker(folder, text), "image")

    def _for_singularity(self, folder: Path, definition: Definition) -> TaskImage:
        if definition.plain:
            return TaskImage(definition.base, definition.workdir)
        copies = any(step.kind == "copy" for step in definition.steps)
        if (folder / DEFINITION).is_file() and definition == read_definition(folder, DEFINITION) and not copies:
            return TaskImage(str(folder / DEFINITION), definition.workdir)
        return TaskImage(str(self._kept(folder, definition.singularity())), definition.workdir)

    def _kept(self, folder: Path, text: str) -> Path:
        """The definition as a file, beside the files that it names."""
        content = archived(folder)
        place = self._cache / hashlib.sha256(text.encode() + content).hexdigest()[:16]

        def make(path: Path) -> None:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(path, filter="data")
            # The engine looks for the files where it is started, not where the definition is.
            (path / DEFINITION).write_text(_with_absolute_files(text, place), "utf-8")

        return made(place, make) / DEFINITION


def _with_absolute_files(text: str, place: Path) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        inside = line == "%files" if line.startswith("%") else inside
        lines.append(f"    {place}/{line.strip()}" if inside and line.startswith(" ") else line)
    return "\n".join(lines) + "\n"


def archived(folder: Path, more: Mapping[str, bytes] | None = None) -> bytes:
    """The folder, with more files, as a tar archive that is the same for the same content; blocking."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isfile():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            elif entry.isdir() or entry.issym():
                archive.addfile(entry)
        for name, data in (more or {}).items():
            added = tarfile.TarInfo(name)
            added.size = len(data)
            archive.addfile(added, io.BytesIO(data))
    return out.getvalue()


def _built_by_docker(folder: Path, dockerfile: str) -> str:
    try:
        import docker
        from docker.errors import BuildError, DockerException, ImageNotFound
    except ImportError as error:
        raise ConfigError(
            "images of tasks are built with the package docker: pip install 'hermes-exec[docker]'"
        ) from error
    context = archived(folder, {_OUR_DOCKERFILE: dockerfile.encode()})
    tag = f"{_REPOSITORY}:{hashlib.sha256(context).hexdigest()[:24]}"
    try:
        client = docker.from_env(timeout=1800)
    except DockerException as error:
        raise ConfigError(f"images of tasks cannot be built: {error}") from error
    try:
        try:
            client.images.get(tag)
        except ImageNotFound:
            client.images.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                dockerfile=_OUR_DOCKERFILE,
                tag=tag,
                rm=True,
                forcerm=True,
            )
    except BuildError as error:
        said = "".join(str(line.get("stream", "")) for line in error.build_log)
        raise ImageError(f"the image of {folder} cannot be built: {error.msg}; {said[-800:]}") from error
    except DockerException as error:
        raise ImageError(f"the image of {folder} cannot be built: {error}") from error
    finally:
        client.close()
    return tag
