"""Checks of tasks against the settings of their run, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_batch.task import Task
from hermes_batch.task_slot import image_of_profile, make_profile
from hermes_exec import BackendConfig, ConfigError, config_type
from hermes_exec.tools import select


class TaskChecks:
    """Checks that a run has the image, the profile and the toolsets of a task.

    Args:
        backend: Name or configuration of the run's backend.
        image: Image of the run.
        options: Further options of the pool.
        strict: Whether a toolset without an available tool is an error.
        has_scorer: Whether a function scores the episodes of all tasks.

    Raises:
        ConfigError: If there is no such backend.
    """

    def __init__(
        self,
        backend: str | BackendConfig,
        image: str | None,
        options: Mapping[str, Any],
        *,
        strict: bool = False,
        has_scorer: bool = False,
    ) -> None:
        config = backend if isinstance(backend, BackendConfig) else config_type(backend)
        kind = config if isinstance(config, type) else type(config)
        self._backend = kind.backend
        self._has_images = "image" in kind.model_fields
        self._image = image or getattr(backend, "image", None) or options.get("image")
        self._profiles: Mapping[str, Any] = options.get("profiles") or {}
        self._strict, self._has_scorer = strict, has_scorer
        self._tools: dict[tuple[str, ...], tuple[str, ...]] = {}
        """The available tools of toolsets."""

    def __call__(self, task: Task) -> None:
        """Check a task.

        Raises:
            ConfigError: If it cannot run.
        """
        make_profile(task, self._profiles)
        self._check_image(task)
        if not (self._has_scorer or task.check) and (task.check_files or task.score_in or task.keep is not None):
            raise ConfigError("check_files, score_in and keep require a check")
        if task.toolsets is not None:
            tools = self._find_tools(tuple(task.toolsets))
            if task.cwd is not None and "terminal" not in tools:
                raise ConfigError("cwd: it is where the terminal starts, and the row's toolsets have no terminal")

    def _check_image(self, task: Task) -> None:
        image = task.container_image
        if image is not None and not self._has_images:
            raise ConfigError(f"image: the backend {self._backend!r} has no images, and the row has {image!r}")
        if self._has_images and not (image or self._image or image_of_profile(task.profile, self._profiles)):
            raise ConfigError(
                f"image: the backend {self._backend!r} needs one, and neither the row nor the run (--image) has one"
            )

    def _find_tools(self, toolsets: tuple[str, ...]) -> tuple[str, ...]:
        if toolsets not in self._tools:
            self._tools[toolsets] = select(toolsets, strict=self._strict).tools
        if not self._tools[toolsets]:
            raise ConfigError(f"toolsets: no tool of {', '.join(toolsets) or '(none)'} is available")
        return self._tools[toolsets]
