"""Sandboxes of the server: their lives, from the request for one to its end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import string
import time
from dataclasses import dataclass, field
from typing import Any

from docker.errors import APIError
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from hermes_exec.backends.modal.backend import ROOTS_TAG
from tests.engines.modal_server.containers import Containers, Process, Wanted
from tests.engines.modal_server.images import Files, Images
from tests.engines.modal_server.rpc import Faults, Message

Result = api_pb2.GenericResult
POLL_S = 0.1
TAG_LETTERS = frozenset(string.ascii_letters + string.digits + "._-")
LETTERS = string.ascii_letters + string.digits


def name(prefix: str, length: int) -> str:
    """An id of letters and digits."""
    return prefix + "".join(secrets.choice(LETTERS) for _ in range(length))


@dataclass
class Sandbox:
    """One sandbox."""

    id: str
    task_id: str
    app_id: str
    definition: api_pb2.Sandbox
    tags: dict[str, str]
    env: dict[str, str]
    created_at: float = field(default_factory=time.time)
    container: str = ""
    result: Any = None
    log: bytes = b""
    scheduled: asyncio.Event = field(default_factory=asyncio.Event)
    called_off: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    processes: dict[str, Process] = field(default_factory=dict)
    ending: Any = None
    """With which status it is being ended."""

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it beside its main process."""
        return all(process.code.done() for process in self.processes.values())


class Sandboxes:
    """Those of one server."""

    def __init__(self, containers: Containers, images: Images, files: Files, faults: Faults) -> None:
        self._containers = containers
        self._images = images
        self._files = files
        self._faults = faults
        self._tasks: set[asyncio.Task[None]] = set()
        self.all: dict[str, Sandbox] = {}
        self.volumes: dict[str, str] = {}
        """Their names, and the directories of this machine that stand for them."""

    def create(
        self, app_id: str, definition: api_pb2.Sandbox, tags: dict[str, str], env: dict[str, str], *, old: bool
    ) -> Sandbox:
        """Take a request for one, which comes to life beside. GRPCError for one that can never be."""
        for part in (*tags, *tags.values()):
            if not part or len(part) > 63 or not set(part) <= TAG_LETTERS:
                raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid tag {part!r}")
        if definition.timeout_secs > 86_400:
            raise GRPCError(Status.INVALID_ARGUMENT, "Sandbox timeout must be at most 24 hours")
        sandbox_id = name("sb-", 22 if old else 27)
        task_id = name("ta-", 22) + ("" if old else "V")
        made = self.all[sandbox_id] = Sandbox(sandbox_id, task_id, app_id, definition, tags, env)
        task = asyncio.create_task(self._live(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def _live(self, sandbox: Sandbox) -> None:
        gpu = sandbox.definition.resources.gpu_config.gpu_type
        while gpu and gpu not in self._faults.gpus and not sandbox.called_off.is_set():  # noqa: ASYNC110 -- two conditions
            await asyncio.sleep(POLL_S)
        if not sandbox.called_off.is_set():
            sandbox.scheduled.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sandbox.called_off.wait(), self._faults.slow_start_s)
        if sandbox.called_off.is_set():
            self._over(sandbox, Result(status=sandbox.ending))
            return
        try:
            sandbox.container = await self._containers.start(self._wanted(sandbox))
        except (APIError, KeyError) as error:
            self._over(sandbox, Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exception=str(error), exitcode=128))
            return
        sandbox.begun.set()
        if sandbox.called_off.is_set():  # meanwhile
            await self._containers.kill(sandbox.container)
        watch = asyncio.create_task(self._watch(sandbox))
        code = await self._containers.wait(sandbox.container)
        watch.cancel()
        with contextlib.suppress(APIError):
            sandbox.log = await self._containers.log(sandbox.container)
        await self._containers.remove(sandbox.container)
        if sandbox.called_off.is_set():
            self._over(sandbox, Result(status=sandbox.ending))
        else:
            status = Result.GENERIC_STATUS_FAILURE if code else Result.GENERIC_STATUS_SUCCESS
            self._over(sandbox, Result(status=status, exitcode=code))

    def _over(self, sandbox: Sandbox, result: Message) -> None:
        sandbox.result = result
        for event in (sandbox.scheduled, sandbox.begun, sandbox.ended):
            event.set()

    async def _watch(self, sandbox: Sandbox) -> None:
        began = seen = time.monotonic()
        idle_s, longest_s = sandbox.definition.idle_timeout_secs, sandbox.definition.timeout_secs
        while True:
            await asyncio.sleep(POLL_S)
            now = time.monotonic()
            seen = seen if sandbox.idle else now
            if longest_s and now - began > longest_s:
                await self.end(sandbox, Result.GENERIC_STATUS_TIMEOUT)
            elif idle_s and now - seen > idle_s:
                await self.end(sandbox, Result.GENERIC_STATUS_TERMINATED)

    async def end(self, sandbox: Sandbox, status: Message) -> None:
        """End it, if it lives."""
        if sandbox.result is None and sandbox.ending is None:
            sandbox.ending = status
            sandbox.called_off.set()
            if sandbox.container:
                await self._containers.kill(sandbox.container)

    def _wanted(self, sandbox: Sandbox) -> Wanted:
        definition = sandbox.definition
        binds = [f"{file.source}:{file.target}:ro" for mount in definition.mount_ids for file in self._files.of(mount)]
        for volume in definition.volume_mounts:
            mode = "ro" if volume.read_only else "rw"
            binds.append(f"{self.volumes[volume.volume_id.removeprefix('vo-')]}:{volume.mount_path}:{mode}")
        resources = definition.resources
        added = {"MODAL_SANDBOX_ID": sandbox.id, "MODAL_TASK_ID": sandbox.task_id, "MODAL_IS_REMOTE": "1"}
        return Wanted(
            image=self._images.get(definition.image_id).docker_id,
            command=list(definition.entrypoint_args),
            env={**added, **sandbox.env},
            workdir=definition.workdir or None,
            network=definition.network_access.network_access_type != api_pb2.NetworkAccess.BLOCKED,
            cpus=resources.milli_cpu_max / 1000,
            memory_mb=resources.memory_mb_max,
            binds=binds,
            nested=sandbox.tags.get(ROOTS_TAG) == "own",
        )

    def get(self, sandbox_id: str) -> Sandbox:
        """GRPCError for one that is not known."""
        found = self.all.get(sandbox_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox with id {sandbox_id} not found")
        return found

    def of_task(self, task_id: str) -> Sandbox:
        """That with a task which lives. GRPCError otherwise."""
        for sandbox in self.all.values():
            if sandbox.task_id == task_id:
                if sandbox.result is not None:
                    raise GRPCError(Status.NOT_FOUND, f"Task {task_id} has ended")
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"Task {task_id} not found")

    def token(self, task_id: str) -> str:
        """A token for the router, good for so long as is switched."""
        payload = {"exp": time.time() + self._faults.token_s, "task_id": task_id}
        parts: tuple[dict[str, object], ...] = ({"alg": "none"}, payload, {})
        return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)

    def admits(self, token: str) -> bool:
        """Whether a token is good."""
        try:
            part = token.split(".")[1]
            payload = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (IndexError, ValueError):
            return False
        return float(payload.get("exp", 0)) > time.time()

    async def close(self) -> None:
        """End all of them."""
        for sandbox in self.all.values():
            await self.end(sandbox, Result.GENERIC_STATUS_TERMINATED)
