"""Configuration models: field names carry their units, and unknown names are refused."""

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.limits import Limits
from hermes_exec.config.loading import ResolvedConfig, backend_sections, pool_schema, read_config, resolve_config
from hermes_exec.config.model import ConfigModel, mask_settings, nearest, secret_fields
from hermes_exec.config.pool import PoolConfig, ProfileConfig, merge_options, with_profile

__all__ = [
    "BackendConfig",
    "ConfigModel",
    "Limits",
    "PoolConfig",
    "ProfileConfig",
    "ResolvedConfig",
    "backend_sections",
    "mask_settings",
    "merge_options",
    "nearest",
    "pool_schema",
    "read_config",
    "resolve_config",
    "secret_fields",
    "with_profile",
]
