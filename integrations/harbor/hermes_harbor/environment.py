"""The environment of harbor whose main container is a slot."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME, require_agent_environment_definition
from harbor.environments.options import EnvironmentOptions
from harbor.models.trial.config import ResourceMode
from pydantic import ConfigDict, Field

from hermes_exec import ConfigError, ImageError, Limits, ProfileConfig, SandboxPool, Slot

MAX_SANDBOXES = 256
"""The maximum number of sandboxes where the options state none: harbor itself bounds the trials at one time."""


class HarborOptions(EnvironmentOptions):  # type: ignore[misc, unused-ignore]
    """The options of the environment (`--ek NAME=VALUE`). Others than these are options of `SandboxPool`."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    config: str | None = Field(default=None, description="Configuration file of the pool.")


class HarborEnvironment(BaseEnvironment):  # type: ignore[misc, unused-ignore]
    """Runs a trial in a slot. All trials of a job share one pool.

    The limits, network and image of the task choose the template of the slot. Where the backend cannot enforce the
    limits for one slot of several, the trial gets a sandbox of its own.
    """

    options_model = HarborOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool: SandboxPool | None = None
        self._slot: Slot | None = None

    @staticmethod
    def type() -> str:
        """Return the name of this type of environment."""
        return "hermes-exec"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The abilities that some backend has. `start` refuses a task that the chosen backend cannot run."""
        return EnvironmentCapabilities(disable_internet=True, gpus=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return which kinds of limits can be enforced."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Check the options before a trial is queued.

        Raises:
            ValueError: If an option is wrong.
            BackendUnavailable: If the package of the backend is not installed.
        """
        super().preflight(kwargs)
        source, options = _pool_arguments(cls.parse_options(kwargs))
        if "image" in options:
            raise ConfigError("image: each task names its own; set docker_image in its task.toml, or leave image out")
        # A pool of images must have one. The message about a backend without images shows this text.
        SandboxPool.from_config(source, **{"image": "docker_image of each task", **options})

    async def start(self, force_build: bool) -> None:
        """Acquire the slot of this trial. A `Dockerfile` is built if its directory has changed, also by `force_build`.

        Raises:
            FileNotFoundError: If the task names no image and has no Dockerfile.
            SandboxBuildFailedError: If the image cannot be pulled or built.
            ConfigError: If the backend cannot run this task.
            ExecError: If no slot can be acquired.
        """
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        if (compose := self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ConfigError(
                f"{compose}: hermes-exec runs tasks of one container; use harbor's own docker environment"
            )
        source, options = _pool_arguments(self.options)
        self._pool = await SandboxPool.shared(source, **options).open()
        try:
            self._slot = await self._pool.acquire(profile=await self._profile(self._pool))
        except ImageError as error:
            raise SandboxBuildFailedError(str(error)) from error
        self.logger.debug("slot %s of sandbox %s", self._slot.id, self._slot.sandbox)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Release the slot, which removes its files whatever `delete` is."""
        slot, self._slot = self._slot, None
        if slot is None or self._pool is None:
            return
        if not delete:
            self.logger.warning("the files of the trial end with its slot: hermes-exec cannot keep them")
        await self._pool.release(slot)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command by the shell of the image.

        Raises:
            RuntimeError: If it takes longer than `timeout_sec` seconds. All its processes have ended then.
            ExecError: If the slot is lost.
        """
        name = self._resolve_user(user)
        notify = self._output_callback()

        async def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            if notify is not None:
                await notify(data.decode(errors="replace"), stream)

        result = await self._open_slot().run(
            command,
            cwd=cwd,
            env=self._merge_env(env),
            timeout_s=timeout_sec,
            user=None if name is None else str(name),
            on_output=None if notify is None else on_output,
        )
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a local file into the slot, into a directory by its name. It belongs to root."""
        slot = self._open_slot()
        if target_path.endswith("/") or await self.is_dir(target_path, user="root"):
            target_path = posixpath.join(target_path, os.path.basename(source_path))
        await slot.files.upload(source_path, target_path, user="root")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a local directory into a directory of the slot. They belong to root."""
        await self._open_slot().files.upload(source_dir, target_dir, user="root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the slot to this host."""
        await self._open_slot().files.download(source_path, target_path, user="root")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory of the slot to this host, without special files."""
        await self._open_slot().files.download(source_dir, target_dir, user="root")

    def _validate_definition(self) -> None:
        """Leave the check to `start`: an error here would end the job, with its other trials."""

    async def _profile(self, pool: SandboxPool) -> ProfileConfig:
        """Return the template of this task's slot."""
        config = self.task_env_config
        image = config.docker_image or f"dockerfile:{self.environment_dir}"
        profile: dict[str, Any] = {"image": image, "workdir": config.workdir or pool.config.workdir or "image"}
        if self._network_disabled:
            profile["network"] = False
        if self._effective_gpus:
            profile["backend_options"] = {"gpus": self._effective_gpus}
        values = {
            "cpus": self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
            "memory_mb": self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT),
        }
        values = {name: value for name, value in values.items() if value is not None}
        if not values:
            return ProfileConfig(**profile)
        of_slot = ProfileConfig(**profile, slot_limits=Limits(**values), best_effort_limits=True)
        several = (pool.config.slots_per_sandbox or 1) > 1
        if several and (await pool.abilities(profile=of_slot)).slot_limits >= set(values):
            return of_slot
        return ProfileConfig(**profile, slots_per_sandbox=1, limits=Limits(**values))

    def _open_slot(self) -> Slot:
        if self._slot is None:
            raise ConfigError("the environment has no slot: call `start` first")
        return self._slot


def _pool_arguments(options: EnvironmentOptions | None) -> tuple[str | Mapping[str, Any], dict[str, Any]]:
    """Return the file of the pool, or defaults, and the options that override it."""
    if not isinstance(options, HarborOptions):
        return {"backend": "docker", "max_sandboxes": MAX_SANDBOXES}, {}
    more = dict(options.model_extra or {})
    return options.config or {"backend": "docker", "max_sandboxes": MAX_SANDBOXES}, more
