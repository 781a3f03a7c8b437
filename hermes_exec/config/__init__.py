"""Configuration: models whose names carry their units, and which refuse what they do not know."""

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.limits import Limits
from hermes_exec.config.loading import Configured, pool_schema, read_config, resolve_config
from hermes_exec.config.model import ConfigModel, nearest
from hermes_exec.config.pool import PoolConfig, ProfileConfig, with_profile
from hermes_exec.config.terminal_names import Imported, import_terminal_names

__all__ = [
    "BackendConfig",
    "ConfigModel",
    "Configured",
    "Imported",
    "Limits",
    "PoolConfig",
    "ProfileConfig",
    "import_terminal_names",
    "nearest",
    "pool_schema",
    "read_config",
    "resolve_config",
    "with_profile",
]
