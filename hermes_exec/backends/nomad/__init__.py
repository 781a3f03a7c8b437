"""Sandboxes as jobs of a Nomad cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.nomad.backend import NomadBackend

Config = NomadConfig


def create(config: BackendConfig) -> NomadBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.nomad.backend import NomadBackend

    if not isinstance(config, NomadConfig):
        raise ConfigError(f"the nomad backend takes a NomadConfig, not {type(config).__name__}")
    return NomadBackend(config)
