"""Modal's control plane, as far as the backend uses it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.engines.modal_server.images import Files, Image, Images
from tests.engines.modal_server.rpc import Faults, Message, Metadata
from tests.engines.modal_server.sandboxes import Result, Sandbox, Sandboxes, name

BUILDER = "2025.06"
KNOWN_GPUS = {"T4", "L4", "A10", "A100", "H100", "ANY"}


def stamp(seconds: float) -> Timestamp:
    """Seconds since the epoch as protobuf has them."""
    made = Timestamp()
    made.FromNanoseconds(int(seconds * 1e9))
    return made


class ControlPlane:
    """The calls, by their names in Modal's protocol."""

    def __init__(self, files: Files, images: Images, sandboxes: Sandboxes, faults: Faults, token: str) -> None:
        self._files = files
        self._images = images
        self._sandboxes = sandboxes
        self._faults = faults
        self._token = token
        self._apps: dict[tuple[str, str], str] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.environments = {"", "main"}
        self.router_url = ""
        self.blob_url = ""

    def allow(self, call: str, metadata: Metadata) -> None:
        """Let in who has the token."""
        given = f"{metadata.get('x-modal-token-id')}:{metadata.get('x-modal-token-secret')}"
        if not secrets.compare_digest(given, self._token):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")

    async def ClientHello(self, request: Message, _: Metadata) -> Message:
        return api_pb2.ClientHelloResponse(image_builder_version=BUILDER)

    async def AuthTokenGet(self, request: Message, _: Metadata) -> Message:
        return api_pb2.AuthTokenGetResponse(token=self._sandboxes.token("auth"))

    async def EnvironmentGetOrCreate(self, request: Message, _: Metadata) -> Message:
        self._environment(request.deployment_name)
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER)
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    def _environment(self, wanted: str) -> None:
        if wanted not in self.environments:
            raise GRPCError(Status.NOT_FOUND, f"Environment '{wanted}' not found")

    async def AppGetOrCreate(self, request: Message, _: Metadata) -> Message:
        self._environment(request.environment_name)
        key = (request.environment_name, request.app_name)
        if key not in self._apps:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found")
            self._apps[key] = name("ap-", 22)
        return api_pb2.AppGetOrCreateResponse(app_id=self._apps[key])

    async def SecretGetOrCreate(self, request: Message, _: Metadata) -> Message:
        if request.deployment_name in self.secrets:
            metadata = api_pb2.SecretMetadata(name=request.deployment_name, keys=self.secrets[request.deployment_name])
            return api_pb2.SecretGetOrCreateResponse(secret_id=f"st-{request.deployment_name}", metadata=metadata)
        if request.env_dict:
            made = f"of-{secrets.token_hex(6)}"
            self.secrets[made] = dict(request.env_dict)
            return api_pb2.SecretGetOrCreateResponse(secret_id=f"st-{made}")
        raise GRPCError(Status.NOT_FOUND, f"Secret '{request.deployment_name}' not found in environment 'main'")

    async def VolumeGetOrCreate(self, request: Message, _: Metadata) -> Message:
        if request.deployment_name not in self._sandboxes.volumes:
            raise GRPCError(Status.NOT_FOUND, f"Volume '{request.deployment_name}' not found in environment 'main'")
        return api_pb2.VolumeGetOrCreateResponse(volume_id=f"vo-{request.deployment_name}")

    # Files and images.

    async def MountBatchedCheckExistence(self, request: Message, _: Metadata) -> Message:
        missing = [sha256 for sha256 in request.sha256_hex_hashes if not self._files.has(sha256)]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def BlobCreate(self, request: Message, _: Metadata) -> Message:
        blob = f"bl-{secrets.token_hex(11)}"
        urls = api_pb2.UploadUrlList(items=[f"{self.blob_url}/{blob}"])
        return api_pb2.BlobCreateResponse(blob_ids=[blob], upload_urls=urls)

    async def MountPutFile(self, request: Message, _: Metadata) -> Message:
        data = self._files.blobs.pop(request.data_blob_id) if request.data_blob_id else request.data
        self._files.put(request.sha256_hex, data)
        return api_pb2.MountPutFileResponse(exists=True)

    async def MountGetOrCreate(self, request: Message, _: Metadata) -> Message:
        made = self._files.mount(list(request.files))
        checksum = hashlib.sha256(made.encode()).hexdigest()
        metadata = api_pb2.MountHandleMetadata(content_checksum_sha256_hex=checksum)
        return api_pb2.MountGetOrCreateResponse(mount_id=made, handle_metadata=metadata)

    async def ImageGetOrCreate(self, request: Message, _: Metadata) -> Message:
        image_id = self._images.ensure(request.image)
        image = self._images.get(image_id)
        if not image.done.is_set() or image.error:
            return api_pb2.ImageGetOrCreateResponse(image_id=image_id)
        return api_pb2.ImageGetOrCreateResponse(
            image_id=image_id, result=self._images.result(image), metadata=api_pb2.ImageMetadata()
        )

    async def ImageJoinStreaming(self, request: Message, _: Metadata) -> AsyncIterator[Message]:
        image = self._image(request.image_id)
        await image.done.wait()
        yield api_pb2.ImageJoinStreamingResponse(task_logs=self._log(image), entry_id="1")
        yield api_pb2.ImageJoinStreamingResponse(
            result=self._images.result(image), metadata=api_pb2.ImageMetadata(), eof=True
        )

    async def ImageFromId(self, request: Message, _: Metadata) -> Message:
        self._image(request.image_id)
        return api_pb2.ImageFromIdResponse(image_id=request.image_id, metadata=api_pb2.ImageMetadata())

    def _image(self, image_id: str) -> Image:
        try:
            return self._images.get(image_id)
        except KeyError:
            raise GRPCError(Status.NOT_FOUND, f"Image with id {image_id} not found") from None

    @staticmethod
    def _log(image: Image) -> list[Any]:
        return [
            api_pb2.TaskLogs(data=line, timestamp=image.ended, file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT)
            for line in image.log
        ]

    async def ImageBuildChainGet(self, request: Message, _: Metadata) -> Message:
        image = self._image(request.image_id)
        step = api_pb2.ImageBuildStep(
            image_id=request.image_id,
            started_at=stamp(image.begun),
            finished_at=stamp(image.ended or time.time()),
            builder_app_id="ap-builder",
            builder_task_id=request.image_id,
        )
        return api_pb2.ImageBuildChainGetResponse(build_steps=[step])

    async def AppFetchLogs(self, request: Message, _: Metadata) -> Message:
        lines = self._log(self._image(request.task_id))[-request.limit :]
        return api_pb2.AppFetchLogsResponse(batches=[api_pb2.TaskLogsBatch(task_id=request.task_id, items=lines)])

    # Sandboxes.

    async def SandboxCreateV2(self, request: Message, _: Metadata) -> Message:
        env: dict[str, str] = dict(request.ephemeral_secrets.contents)
        for source in request.secret_sources:
            env |= dict(source.env.contents) if source.HasField("env") else self._secret(source.secret_id)
        made = self._create(request, env, old=False)
        access = api_pb2.CommandRouterAccess(url=self.router_url, jwt=self._sandboxes.token(made.task_id))
        if self._faults.slow_create_s:
            await asyncio.sleep(self._faults.slow_create_s)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=made.id, task_id=made.task_id, command_router_access=access, metadata=self._metadata(made)
        )

    async def SandboxCreate(self, request: Message, _: Metadata) -> Message:
        gpu = request.definition.resources.gpu_config.gpu_type
        if gpu and gpu.upper() not in KNOWN_GPUS:
            raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid GPU type: {gpu}")
        env: dict[str, str] = {}
        for secret in request.definition.secret_ids:
            env |= self._secret(secret)
        made = self._create(request, env, old=True)
        return api_pb2.SandboxCreateResponse(sandbox_id=made.id, metadata=self._metadata(made))

    def _create(self, request: Message, env: dict[str, str], *, old: bool) -> Sandbox:
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return self._sandboxes.create(request.app_id, request.definition, tags, env, old=old)

    def _secret(self, secret_id: str) -> dict[str, str]:
        return self.secrets[secret_id.removeprefix("st-")]

    @staticmethod
    def _metadata(sandbox: Sandbox) -> Message:
        return api_pb2.SandboxHandleMetadata(app_id=sandbox.app_id, result=sandbox.result)

    async def SandboxGetTaskIdV2(self, request: Message, _: Metadata) -> Message:
        found = self._sandboxes.get(request.sandbox_id)
        if found.result is not None and not found.container:
            return api_pb2.SandboxGetTaskIdResponse(task_result=found.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=found.task_id if found.scheduled.is_set() else None)

    async def SandboxGetCommandRouterAccess(self, request: Message, _: Metadata) -> Message:
        task_id = request.task_id or self._sandboxes.get(request.sandbox_id).task_id
        return api_pb2.SandboxGetCommandRouterAccessResponse(
            url=self.router_url, jwt=self._sandboxes.token(self._sandboxes.of_task(task_id).task_id)
        )

    async def TaskGetCommandRouterAccess(self, request: Message, _: Metadata) -> Message:
        jwt = self._sandboxes.token(self._sandboxes.of_task(request.task_id).task_id)
        return api_pb2.TaskGetCommandRouterAccessResponse(url=self.router_url, jwt=jwt)

    async def SandboxWaitV2(self, request: Message, _: Metadata) -> Message:
        found = self._sandboxes.get(request.sandbox_id)
        if request.timeout:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(found.ended.wait(), request.timeout)
        return api_pb2.SandboxWaitResponse(result=found.result, metadata=self._metadata(found))

    async def SandboxTerminateV2(self, request: Message, _: Metadata) -> Message:
        found = self._sandboxes.get(request.sandbox_id)
        await self._sandboxes.end(found, Result.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxTerminateResponse()

    async def SandboxListV2(self, request: Message, _: Metadata) -> Message:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            api_pb2.SandboxInfo(id=one.id, created_at=one.created_at, app_id=one.app_id, metadata=self._metadata(one))
            for one in sorted(self._sandboxes.all.values(), key=lambda one: -one.created_at)
            if (not request.app_id or one.app_id == request.app_id)
            and one.result is None
            and one.ending is None
            and wanted.items() <= one.tags.items()
            and (not request.before_timestamp or one.created_at < request.before_timestamp)
        ]
        return api_pb2.SandboxListResponse(sandboxes=found[:100])

    async def SandboxTagsGetV2(self, request: Message, _: Metadata) -> Message:
        tags = self._sandboxes.get(request.sandbox_id).tags
        return api_pb2.SandboxTagsGetResponse(
            tags=[api_pb2.SandboxTag(tag_name=key, tag_value=value) for key, value in tags.items()]
        )

    async def SandboxGetLogs(self, request: Message, _: Metadata) -> AsyncIterator[Message]:
        found = self._sandboxes.get(request.sandbox_id)
        await found.ended.wait()
        line = api_pb2.TaskLogs(data=found.log.decode("utf-8", "replace"), file_descriptor=request.file_descriptor)
        yield api_pb2.TaskLogsBatch(entry_id="1", items=[line], eof=True)

    SandboxGetTaskId = SandboxGetTaskIdV2
    SandboxWait = SandboxWaitV2
    SandboxTerminate = SandboxTerminateV2
    SandboxTagsGet = SandboxTagsGetV2


def files_directory(directory: Path) -> Path:
    """Where uploads are kept, below a directory of the server."""
    made = directory / "files"
    made.mkdir(parents=True, exist_ok=True)
    return made
