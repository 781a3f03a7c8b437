"""Sandboxes as containers of Apptainer or Singularity, without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.singularity.backend import SingularityBackend

Config = SingularityConfig


def create(config: BackendConfig) -> SingularityBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.singularity.backend import SingularityBackend

    if not isinstance(config, SingularityConfig):
        raise ConfigError(f"the singularity backend takes a SingularityConfig, not {type(config).__name__}")
    return SingularityBackend(config)
