"""The Modal backend: a sandbox is a Modal sandbox whose main process is the runner."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hermes_exec.backends.base import Labels, LaunchSpec, ReapedSandbox, ReapFilter, SandboxInfo, volume_arguments
from hermes_exec.backends.dockerfile import directory_of
from hermes_exec.backends.engine_errors import temporarily_unavailable
from hermes_exec.backends.modal.client import ANSWER_S, ModalClient
from hermes_exec.backends.modal.config import DAY_S, ModalConfig
from hermes_exec.backends.modal.images import RUNNER, ModalImages, report_progress
from hermes_exec.backends.modal.sandbox import BASE, ModalSandbox, terminate, workdir_of
from hermes_exec.backends.modal.stream import ModalStreams
from hermes_exec.backends.owner import PREFIX, from_strings, own_labels, owner_state, reap_each, to_strings
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    import modal

LAUNCH_TAG = f"{PREFIX}launch"
ROOTS_TAG = f"{PREFIX}slot-roots"
LIMITED = "limit of the sandbox on Modal"
LIFETIME_MARGIN_S = 3600
"""How much longer a sandbox may live than its slots are acquired."""


class ModalBackend:
    """A backend that runs sandboxes in one app of Modal."""

    name = "modal"
    can_be_exclusive = True
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, config: ModalConfig) -> None:
        self._config = config
        self._client = ModalClient(config.app_name, config.environment)
        self._images = ModalImages(self._client, config)
        self._streams = ModalStreams()

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`."""
        directory_of(check_options(self._config, spec))
        try:
            await self._client.call(self._client.hello)
        except LaunchError as error:
            raise temporarily_unavailable(f"Modal is unavailable now, try again later: {error}") from error

    async def launch(self, spec: LaunchSpec, labels: Labels) -> ModalSandbox:
        """See `Backend.launch`."""
        image = await self._ready(spec)
        return await self._client.call(partial(self._create, spec, labels, image), within_s=None)

    async def prefetch(self, spec: LaunchSpec) -> None:
        """See `CanPrefetch.prefetch`."""
        await self._ready(spec)

    async def _ready(self, spec: LaunchSpec) -> modal.Image:
        name = check_options(self._config, spec)
        return await self._client.call(
            partial(self._images.ensure, name, spec.pull_timeout_s, spec.on_progress), within_s=None
        )

    async def _create(self, spec: LaunchSpec, labels: Labels, image: modal.Image) -> ModalSandbox:
        import modal

        app, launch = await self._client.app(), secrets.token_hex(8)
        options = self._options(spec)
        # Measured before the launch, so that the sandbox never seems to live longer than it does.
        ends_at = time.monotonic() + options["timeout"]
        tags = {**to_tags(labels), LAUNCH_TAG: launch, ROOTS_TAG: "own" if spec.own_roots else "shared"}
        gpus = f" with gpus={self._config.gpus!r}" if self._config.gpus else ""
        try:
            with report_progress(check_options(self._config, spec), f"Modal looks for a place{gpus}", spec.on_progress):
                sandbox = await modal.Sandbox.create.aio(
                    *runner_command(self._config, spec), app=app, image=image, tags=tags, **options
                )
                # This returns when the sandbox has started. Modal may delay it, for example until a GPU is free.
                workdir = await workdir_of(sandbox)
        except BaseException:
            # Modal may have made the sandbox though the answer was lost. One made even later ends with its lease.
            with anyio.move_on_after(ANSWER_S, shield=True), contextlib.suppress(Exception):
                await self._end_all({LAUNCH_TAG: launch})
            raise
        limits = {name: LIMITED if name in ENFORCED else "not enforced" for name in spec.limits.total()}
        return ModalSandbox(
            self._client,
            self._streams,
            sandbox,
            workdir,
            limits,
            ends_at,
            exclusive=spec.exclusive,
            image_id=image.object_id or "",
        )

    def _options(self, spec: LaunchSpec) -> dict[str, Any]:
        import modal

        config, cpus, memory_mb = self._config, spec.limits.cpus, spec.limits.memory_mb
        longest = DAY_S if spec.lifetime_s is None else min(DAY_S, int(spec.lifetime_s) + LIFETIME_MARGIN_S)
        region = config.region
        named = partial(modal.Secret.from_name, environment_name=config.environment)
        return {
            "timeout": config.lifetime_s or longest,
            "idle_timeout": config.idle_timeout_s,
            "block_network": not spec.network,
            "cpu": None if cpus is None else (cpus, cpus),
            "memory": None if memory_mb is None else (memory_mb, memory_mb),
            "gpu": f"any:{config.gpus}" if isinstance(config.gpus, int) else config.gpus,
            "region": list(region) if isinstance(region, tuple) else region,
            "cloud": config.cloud,
            "runtime": config.runtime,
            "env": dict(config.env),
            "secrets": [named(name) for name in config.modal_secrets],
            "volumes": self._volumes(),
        }

    def _volumes(self) -> dict[str, modal.Volume]:
        import modal

        volumes = {}
        for volume in (*self._config.volumes, *self._config.shared_volumes):
            name, target, mode = volume_parts(volume)
            mounted = modal.Volume.from_name(name, environment_name=self._config.environment)
            volumes[target] = mounted.with_mount_options(read_only=True) if mode == "ro" else mounted
        return volumes

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """See `Backend.reap`."""
        sandboxes = {info.sandbox: (sandbox, info) for sandbox, info in await self._client.call(self._list_sandboxes)}

        def end(info: SandboxInfo) -> Awaitable[None]:
            return self._client.call(partial(terminate, sandboxes[info.sandbox][0]))

        return await reap_each([info for _, info in sandboxes.values()], which, end)

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Backend.sandboxes`. Modal lists running ones only."""
        return [info for _, info in await self._client.call(self._list_sandboxes)]

    async def _end_all(self, tags: Mapping[str, str]) -> None:
        import modal

        app = await self._client.app(make=False)
        if app is not None:
            async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags=dict(tags)):
                await terminate(sandbox)

    async def _list_sandboxes(self) -> list[tuple[modal.Sandbox, SandboxInfo]]:
        import modal

        app = await self._client.app(make=False)
        if app is None:
            return []
        running = [sandbox async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id)]
        tagged = await asyncio.gather(*(sandbox.get_tags.aio() for sandbox in running), return_exceptions=True)
        sandboxes = []
        for sandbox, tags in zip(running, tagged, strict=True):
            if isinstance(tags, modal.exception.NotFoundError):
                continue  # it has ended meanwhile
            if isinstance(tags, BaseException):
                raise tags
            labels = from_tags(tags)
            if labels is not None:
                info = SandboxInfo(
                    sandbox=sandbox.object_id,
                    backend=self.name,
                    labels=labels,
                    owner=owner_state(labels, shared_engine=True),
                    state="running",
                )
                sandboxes.append((sandbox, info))
        return sandboxes

    async def aclose(self) -> None:
        """End the client's event loop."""
        await anyio.to_thread.run_sync(self._client.close, abandon_on_cancel=True)


ENFORCED = ("cpus", "memory_mb")


def check_options(config: ModalConfig, spec: LaunchSpec) -> str:
    """Return the name of the image.

    Raises:
        ConfigError: If a sandbox cannot have the options.
    """
    name = spec.image or config.image
    if not name:
        raise ConfigError("the modal backend needs an image: SandboxPool('modal', image='…')")
    unsupported = set(spec.limits.total()) - spec.default_limits - set(ENFORCED)
    if unsupported and not spec.best_effort_limits:
        named = ", ".join(f"limits.{limit}" for limit in sorted(unsupported))
        raise ConfigError(f"Modal has no bound for {named}: use slot_limits, or best_effort_limits=True")
    return name


def runner_command(config: ModalConfig, spec: LaunchSpec) -> list[str]:
    """Return the command of the main process. Variables that Modal adds to the image's are for its own programs."""
    argv = [RUNNER, "serve", "--base", BASE, "--lease-s", str(spec.lease_s), "--unset", "MODAL_*"]
    return argv + volume_arguments(config.volumes, config.shared_volumes)


def to_tags(labels: Labels) -> dict[str, str]:
    """Return labels as Modal accepts them: letters, digits and `._-`, at most 63. Texts for people have `_` in place of
    other characters, and tags for empty ones are left out.
    """
    user, note = (re.sub(r"[^A-Za-z0-9._-]", "_", text) for text in (labels.user, labels.note))
    strings = to_strings(replace(labels, host_id=_digest(labels.host_id), user=user, note=note))
    optional = {f"{PREFIX}user", f"{PREFIX}note"}
    return {name: value[:63] or "-" for name, value in strings.items() if value or name not in optional}


def from_tags(tags: Mapping[str, str]) -> Labels | None:
    """Return the labels among the tags of a sandbox; None if it is not this library's."""
    labels, own = from_strings(tags), own_labels("").host_id
    if labels is not None and labels.host_id == _digest(own):
        return replace(labels, host_id=own)
    return labels


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
