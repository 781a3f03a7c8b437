"""Sandboxes as sandboxes of Modal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec.backends.modal.config import ModalConfig
from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.backends.modal.backend import ModalBackend

Config = ModalConfig


def create(config: BackendConfig) -> ModalBackend:
    """Make the backend from its configuration."""
    from hermes_exec.backends.modal.backend import ModalBackend

    if not isinstance(config, ModalConfig):
        raise ConfigError(f"the modal backend takes a ModalConfig, not {type(config).__name__}")
    return ModalBackend(config)
