"""Configuration: models whose names carry their units, and which refuse what they do not know."""

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.limits import Limits
from hermes_exec.config.loading import Configured, named_backends, pool_schema, read_config, resolve_config
from hermes_exec.config.model import ConfigModel, masked_settings, nearest, secret_fields
from hermes_exec.config.pool import PoolConfig, ProfileConfig, overlaid, with_profile

__all__ = [
    "BackendConfig",
    "ConfigModel",
    "Configured",
    "Limits",
    "PoolConfig",
    "ProfileConfig",
    "masked_settings",
    "named_backends",
    "nearest",
    "overlaid",
    "pool_schema",
    "read_config",
    "resolve_config",
    "secret_fields",
    "with_profile",
]
