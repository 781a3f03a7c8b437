"""Sandboxes as process trees on hosts reached by SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.ssh.backend import SSHBackend

Config = SSHConfig


def create(config: BackendConfig) -> SSHBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.ssh.backend import SSHBackend

    if not isinstance(config, SSHConfig):
        raise ConfigError(f"the ssh backend takes an SSHConfig, not {type(config).__name__}")
    return SSHBackend(config)
