"""The Docker backend: a sandbox is a container whose main process is the runner."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.backends.base import Labels, LaunchSpec, ReapedSandbox, ReapFilter, SandboxInfo
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import base_of, check_options, check_own_roots, image_of, plan_container
from hermes_exec.backends.docker.delivery import Delivery, NotShared
from hermes_exec.backends.docker.engine import DockerEngine
from hermes_exec.backends.docker.image import DockerImages, ImageFacts
from hermes_exec.backends.docker.leftovers import advice_on, find_leftovers, remove, remove_volumes
from hermes_exec.backends.docker.sandbox import CreatedContainer, DockerSandbox
from hermes_exec.backends.docker.trial_image import trial_image
from hermes_exec.backends.engine_errors import end_with_retries
from hermes_exec.backends.owner import PREFIX, from_strings, owner_state, reap_each, reap_reason
from hermes_exec.backends.runner_binary import RunnerBinary, find_runner
from hermes_exec.errors import BackendUnavailable

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)
RUN_LABEL = f"{PREFIX}run-id"
ENDED = ("exited", "dead")


class DockerBackend:
    """A backend that runs sandboxes as containers of one engine."""

    name = "docker"
    can_be_exclusive = True
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._engine = DockerEngine(config)
        self._images = DockerImages(self._engine, config)
        self._delivery = Delivery(config)
        self._security_options: list[str] | None = None
        self._podman = False

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`."""
        check_options(self._config, spec)
        await self._engine.call(lambda client: client.ping())
        await self._check_own_roots(spec)
        await self._images.check(image_of(self._config, spec))

    async def launch(self, spec: LaunchSpec, labels: Labels) -> DockerSandbox:
        """See `Backend.launch`."""
        check_options(self._config, spec)
        await self._check_own_roots(spec)
        image = await self._ready(spec)
        spec = replace(spec, image=image.name)
        # The name is chosen before the request: the container can be removed by it even if the answer is lost.
        name = f"hermes-exec-{secrets.token_hex(8)}"

        def work(client: DockerClient) -> DockerSandbox:
            return self._launch(client, spec, labels, image, name)

        try:
            return await self._engine.make(work, lambda sandbox: sandbox.destroy_now(self._config.api_timeout_s))
        except BackendUnavailable as error:
            if error.retryable:  # the daemon went away during the launch
                with anyio.CancelScope(shield=True):
                    await end_with_retries(partial(self._engine.call, partial(remove, container=name)))
            raise

    async def prefetch(self, spec: LaunchSpec) -> None:
        """See `CanPrefetch.prefetch`."""
        await self._ready(spec)

    async def _ready(self, spec: LaunchSpec) -> ImageFacts:
        return await self._images.ensure(image_of(self._config, spec), spec.pull_timeout_s, spec.on_progress)

    async def _check_own_roots(self, spec: LaunchSpec) -> None:
        if not spec.own_roots:
            return
        if self._security_options is None:
            info: Mapping[str, Any] = await self._engine.call(lambda client: client.info())
            version: Mapping[str, Any] = await self._engine.call(lambda client: client.version())
            self._podman = any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ())
            self._security_options = list(info.get("SecurityOptions") or ())
        check_own_roots(self._config, self._security_options)

    def _launch(
        self, client: DockerClient, spec: LaunchSpec, labels: Labels, image: ImageFacts, name: str
    ) -> DockerSandbox:
        runner = find_runner(image.os, image.arch)
        try:
            return self._launch_once(client, spec, labels, image, runner, name)
        except NotShared:
            logger.info("the engine does not share this host's files: the runner is copied into its containers")
            return self._launch_once(client, spec, labels, image, runner, name)

    def _launch_once(
        self, client: DockerClient, spec: LaunchSpec, labels: Labels, image: ImageFacts, runner: RunnerBinary, name: str
    ) -> DockerSandbox:
        from docker.errors import APIError

        with self._delivery.open(runner) as delivery:
            plan = plan_container(
                client,
                self._config,
                spec,
                labels,
                name,
                delivery.mounts,
                delivery.dial_socket,
                podman=self._podman,
            )
            try:
                created: Mapping[str, Any] = client.api.create_container(**plan.arguments)
                for warning in created.get("Warnings") or ():
                    logger.warning("Docker: %s", warning)
                container = str(created["Id"])
                self._delivery.prepare(client, container, delivery, runner)
                client.api.start(container)
                stream = self._delivery.accept(client, container, delivery)
            except BaseException as error:
                remove(client, name)
                if isinstance(error, APIError) and self._delivery.disproves_sharing(error, delivery, runner):
                    raise NotShared from error
                raise
        info = CreatedContainer(
            id=container,
            name=name,
            user=None if self._config.user else image.user,
            workdir=image.workdir,
            limits=plan.limits,
            exclusive=spec.exclusive,
            base=base_of(self._config),
            image_id=image.id,
        )
        return DockerSandbox(self._engine, info, stream)

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """See `Backend.reap`."""
        leftovers = await self._engine.call(partial(find_leftovers, retry=which.retry))
        sandboxes = [info for info in await self.sandboxes() if f"container-{info.sandbox}" not in leftovers]
        ended = await reap_each(
            sandboxes, which, lambda info: self._engine.call(partial(remove, container=info.sandbox))
        )
        await self._engine.call(partial(self._reap_volumes, which=which))
        return ended

    def _reap_volumes(self, client: DockerClient, which: ReapFilter) -> None:
        """Remove volumes whose containers were removed by others."""

        def matches(strings: Mapping[str, str]) -> bool:
            labels = from_strings(strings)
            if labels is None:
                return False
            # A volume exists a moment before its container, so it is left over only if its owner is gone.
            owner = owner_state(labels, shared_engine=True)
            return reap_reason(which, labels, owner, ended=False) is not None

        remove_volumes(client, {"label": RUN_LABEL, "dangling": "true"}, matches)

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Backend.sandboxes`."""
        return await self._engine.call(self._list_containers)

    def _list_containers(self, client: DockerClient) -> list[SandboxInfo]:
        sandboxes = []
        containers: list[Mapping[str, Any]] = client.api.containers(all=True, filters={"label": RUN_LABEL})
        for container in containers:
            labels = from_strings(container.get("Labels") or {})
            if labels is None:
                continue
            state = str(container.get("State"))
            info = SandboxInfo(
                sandbox=container["Id"],
                backend=self.name,
                labels=labels,
                owner=owner_state(labels, shared_engine=True),
                state=state,
                image=container.get("Image"),
                created_at=container.get("Created"),
                ended=state in ENDED,
            )
            sandboxes.append(info)
        return sandboxes

    async def leftovers(self) -> list[str]:
        """See `HasLeftovers.leftovers`."""
        leftovers = await self._engine.call(partial(find_leftovers, retry=False))
        return [f"{advice_on(what)}: {why}" for what, why in leftovers.items()]

    def trial_image(self) -> AbstractAsyncContextManager[tuple[str, list[str]]]:
        """See `HasTrialImage.trial_image`."""
        return trial_image(self._engine)

    async def aclose(self) -> None:
        """Close the connections to the engine."""
        self._engine.close()
