"""Sandboxes as containers of a Docker daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.docker.backend import DockerBackend

Config = DockerConfig


def create(config: BackendConfig) -> DockerBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.docker.backend import DockerBackend

    if not isinstance(config, DockerConfig):
        raise ConfigError(f"the docker backend takes a DockerConfig, not {type(config).__name__}")
    return DockerBackend(config)
