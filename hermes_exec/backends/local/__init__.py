"""Sandboxes as process trees on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.local.backend import LocalBackend

Config = LocalConfig


def create(config: BackendConfig) -> LocalBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.local.backend import LocalBackend

    if not isinstance(config, LocalConfig):
        raise ConfigError(f"the local backend takes a LocalConfig, not {type(config).__name__}")
    return LocalBackend(config)
