"""Modal's task command router: processes in sandboxes, their streams by offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from docker.errors import APIError
from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from tests.engines.modal_server.containers import Containers, Process
from tests.engines.modal_server.rpc import Message, Metadata
from tests.engines.modal_server.sandboxes import Sandbox, Sandboxes


class CommandRouter:
    """The calls, by their names in Modal's protocol."""

    def __init__(self, containers: Containers, sandboxes: Sandboxes) -> None:
        self._containers = containers
        self._sandboxes = sandboxes
        self._starting: dict[str, asyncio.Lock] = {}

    def allow(self, call: str, metadata: Metadata) -> None:
        """Let in who has a token that is good."""
        if not self._sandboxes.admits(str(metadata.get("authorization", "")).removeprefix("Bearer ")):
            raise GRPCError(Status.UNAUTHENTICATED, "the token has expired")

    async def _running(self, task_id: str) -> Sandbox:
        found = self._sandboxes.of_task(task_id)
        await found.begun.wait()
        if found.result is not None:
            raise GRPCError(Status.NOT_FOUND, f"Task {task_id} has ended")
        return found

    async def _process(self, request: Message) -> Process:
        found = (await self._running(request.task_id)).processes.get(request.exec_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Exec {request.exec_id} not found")
        return found

    async def TaskExecStart(self, request: Message, _: Metadata) -> Message:
        sandbox = await self._running(request.task_id)
        async with self._starting.setdefault(request.exec_id, asyncio.Lock()):
            if request.exec_id not in sandbox.processes:
                env: dict[str, str] = {}
                for source in request.secret_sources:
                    env |= dict(source.env.contents)
                keep = (
                    request.stdout_config == router_pb2.TASK_EXEC_STDOUT_CONFIG_PIPE,
                    request.stderr_config == router_pb2.TASK_EXEC_STDERR_CONFIG_PIPE,
                )
                argv, workdir = list(request.command_args), request.workdir or None
                try:
                    made = await self._containers.enter(sandbox.container, argv, env, workdir, keep=keep)
                except APIError as error:
                    raise GRPCError(Status.FAILED_PRECONDITION, f"the process cannot be started: {error}") from error
                sandbox.processes[request.exec_id] = made
        self._starting.pop(request.exec_id, None)
        return router_pb2.TaskExecStartResponse()

    async def TaskExecStdioRead(self, request: Message, _: Metadata) -> AsyncIterator[Message]:
        process = await self._process(request)
        errors = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR
        output, offset = process.stderr if errors else process.stdout, request.offset
        while data := await output.read(offset):
            offset += len(data)
            yield router_pb2.TaskExecStdioReadResponse(data=data)

    async def TaskExecStdinWrite(self, request: Message, _: Metadata) -> Message:
        process = await self._process(request)
        if not await process.write(request.offset, request.data, eof=request.eof):
            raise GRPCError(Status.OUT_OF_RANGE, f"there is a gap before offset {request.offset}")
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecWait(self, request: Message, _: Metadata) -> Message:
        code = await asyncio.shield((await self._process(request)).code)
        return router_pb2.TaskExecWaitResponse(code=code)

    async def TaskExecPoll(self, request: Message, _: Metadata) -> Message:
        code = (await self._process(request)).code
        return router_pb2.TaskExecPollResponse(code=code.result()) if code.done() else router_pb2.TaskExecPollResponse()

    async def SandboxStdioReadV2(self, request: Message, _: Metadata) -> AsyncIterator[Message]:
        found = next((one for one in self._sandboxes.all.values() if one.task_id == request.task_id), None)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Task {request.task_id} not found")
        await found.ended.wait()
        errors = request.file_descriptor == router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR
        if errors and found.log[request.offset :]:
            yield router_pb2.SandboxStdioReadV2Response(
                data=found.log[request.offset :], starting_offset=request.offset
            )
