"""Turns the arguments of a pool into validated configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hermes_exec.backends.registry import config_type
from hermes_exec.checks import validate_commands
from hermes_exec.config import BackendConfig, PoolConfig, resolve_config
from hermes_exec.errors import ConfigError

T = TypeVar("T")


def resolve_options(
    backend: str | BackendConfig, arguments: dict[str, Any], options: Mapping[str, Any]
) -> tuple[PoolConfig, BackendConfig]:
    """Return the validated settings of a pool and of its backend.

    Raises:
        ConfigError: If a name or value is wrong.
        BackendUnavailable: If the backend is not installed.
    """
    for name in ("profiles", "env", "secrets", "files"):
        arguments[name] = validate_mapping(arguments[name], name)
    for name in ("setup", "slot_setup"):
        arguments[name] = validate_commands(arguments[name], name)
    if isinstance(backend, BackendConfig):
        if options:
            names = ", ".join(sorted(options))
            raise ConfigError(f"options ({names}) belong in the {type(backend).__name__} object")
        values = {**arguments, "backend": type(backend).backend}
        own = {name: getattr(backend, name) for name in backend.model_fields_set}
        expanded = type(backend).expand({**values, "backend_options": own})
        options = dict(expanded.pop("backend_options"))
        return PoolConfig.of(expanded), backend if options == own else backend.with_options(options)
    if not isinstance(backend, str):
        raise ConfigError(f"backend must be a name or a config object, not {type(backend).__name__}")
    return resolve_config({**arguments, "backend": backend, **options}, config_type(backend))


def validate_mapping(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return a mapping as a dict, None as an empty one. Raises ConfigError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping, not {type(value).__name__}")
    return dict(value)


def validate_callback(value: T | None, name: str) -> T | None:
    """Return the value if it is callable or None. Raises ConfigError otherwise."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function, not {type(value).__name__}")
    return value
