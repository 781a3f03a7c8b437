"""Images of the server: Dockerfiles that are really built by Docker, files that were uploaded."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import APIError, ImageNotFound
from modal_proto import api_pb2

from tests.engines.modal_server.containers import Containers
from tests.engines.modal_server.rpc import Message


class MountedFile(NamedTuple):
    """One file of a mount: where it belongs, where it is here, its mode."""

    target: str
    source: Path
    mode: int


class Files:
    """Uploaded files by their SHA-256, and the mounts that are made of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mounts: dict[str, list[MountedFile]] = {}
        self.blobs: dict[str, bytes] = {}

    def has(self, sha256: str) -> bool:
        """Whether it was uploaded."""
        return (self._directory / sha256).exists()

    def put(self, sha256: str, data: bytes) -> None:
        """Take a file; ValueError when it is not what it is called."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"what was uploaded is not {sha256}")
        (self._directory / sha256).write_bytes(data)

    def mount(self, files: list[api_pb2.MountFile]) -> str:
        """The id of a mount of such files; the same for the same ones."""
        key = repr([(file.filename, file.sha256_hex, file.mode) for file in files])
        name = f"mo-{hashlib.sha256(key.encode()).hexdigest()[:22]}"
        found = []
        for file in files:
            mode = file.mode or 0o644
            path = self._directory / f"{file.sha256_hex}-{mode:o}"
            if not path.exists():
                path.write_bytes((self._directory / file.sha256_hex).read_bytes())
                path.chmod(mode)
            found.append(MountedFile(file.filename, path, mode))
        self._mounts[name] = found
        return name

    def of(self, mount: str) -> list[MountedFile]:
        """The files of a mount."""
        return self._mounts[mount]


@dataclass
class Image:
    """One image that was asked for; `docker_id` once it is built, `error` when that failed."""

    definition: api_pb2.Image
    docker_id: str = ""
    error: str = ""
    log: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.time)
    ended: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Images:
    """The images of one server, by the content of their definitions."""

    def __init__(self, containers: Containers, files: Files) -> None:
        self._containers = containers
        self._files = files
        self._found: dict[str, Image] = {}
        self._building: set[asyncio.Task[None]] = set()
        self.secrets: Mapping[str, Mapping[str, str]] = {}

    def get(self, image_id: str) -> Image:
        """KeyError for one that is not known."""
        return self._found[image_id]

    def ensure(self, definition: api_pb2.Image) -> str:
        """The id of an image; its build goes on beside."""
        name = f"im-{hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()[:22]}"
        if name not in self._found or self._found[name].error:
            made = self._found[name] = Image(definition)
            task = asyncio.create_task(self._build(made))
            self._building.add(task)
            task.add_done_callback(self._building.discard)
        return name

    async def _build(self, image: Image) -> None:
        bases = {}
        for base in image.definition.base_images:
            found = self._found[base.image_id]
            await found.done.wait()
            bases[base.docker_tag] = found.docker_id
        try:
            image.docker_id = await self._containers.call(lambda client: self._run(client, image, bases))
        except (APIError, OSError, ValueError, KeyError) as error:
            image.error = str(error)
            image.log.append(f"{error}\n")
        image.ended = time.time()
        image.done.set()

    def _run(self, client: docker.DockerClient, image: Image, bases: Mapping[str, str]) -> str:
        lines = list(image.definition.dockerfile_commands)
        plain = [line for line in lines if line.strip()]
        if len(plain) == 1 and plain[0].upper().startswith("FROM ") and not bases:
            return self._registry(client, plain[0].split()[1], image)
        for number, line in enumerate(lines):
            words = line.split()
            if words[:1] and words[0].upper() == "FROM":
                lines[number] = f"FROM {bases.get(words[1]) or self._registry(client, words[1], image)}"
        built = ""
        for event in client.api.build(
            fileobj=self._context(image, "\n".join(lines)), custom_context=True, rm=True, forcerm=True, decode=True,
            labels=self._containers.label, buildargs=dict(image.definition.build_args),
        ):  # fmt: skip
            image.log.append(str(event.get("stream") or event.get("error") or ""))
            if "error" in event:
                raise ValueError(event["error"])
            built = event.get("aux", {}).get("ID", built)
        if not built:
            raise ValueError("the build made no image")
        return built

    def _registry(self, client: docker.DockerClient, name: str, image: Image) -> str:
        """An image that this machine has, or a registry on it, for which the secret is."""
        secret_id = image.definition.image_registry_config.secret_id
        try:
            if name.startswith("127.0.0.1:"):
                login = None
                if secret_id:
                    secret = self.secrets[secret_id.removeprefix("st-")]
                    login = {"username": secret["REGISTRY_USERNAME"], "password": secret["REGISTRY_PASSWORD"]}
                return str(client.images.pull(name, auth_config=login).id)
            return str(client.images.get(name).id)
        except ImageNotFound:
            raise ValueError(f"the registry has no image {name}") from None

    def _context(self, image: Image, dockerfile: str) -> io.BytesIO:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            named: list[tuple[str, int, bytes]] = [("Dockerfile", 0o644, dockerfile.encode())]
            named += [(file.filename, 0o644, file.data) for file in image.definition.context_files]
            if image.definition.context_mount_id:
                mounted = self._files.of(image.definition.context_mount_id)
                named += [(file.target.lstrip("/"), file.mode, file.source.read_bytes()) for file in mounted]
            for name, mode, data in named:
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), mode
                archive.addfile(info, io.BytesIO(data))
        buffer.seek(0)
        return buffer

    def result(self, image: Image) -> Message:
        """How its build ended, in Modal's words."""
        if image.error:
            return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE)
        return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
