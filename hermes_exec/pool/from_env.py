"""Options of a pool from environment variables with a prefix, and from a file that one of them names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import SecretStr

from hermes_exec.backends.registry import config_type
from hermes_exec.config import PoolConfig, nearest, read_config
from hermes_exec.errors import ConfigError
from hermes_exec.pool.backend_entries import with_backend

_OLDER_PREFIXES = ("ATROPOS_", "HERMES_DOCKER_", "HERMES_WRITE_", "NOMAD_", "TERMINAL_", "TOOL_")
_TEXT_TYPES = (str, str | None, SecretStr, SecretStr | None)


def read_options(
    environ: Mapping[str, str], prefix: str, backend: str | None = None
) -> tuple[dict[str, Any], str | None]:
    """Return the options of a pool and the profile to use, from the variables with `prefix`.

    `backend` overrides the variable of that name. Where the file names several backends, the options include those of
    the chosen one. Variable names of older tools cause a RuntimeWarning.

    Raises:
        ConfigError: If a value cannot be read, or a name after the prefix is no option.
    """
    own = {name[len(prefix) :].lower(): text for name, text in environ.items() if name.startswith(prefix) and text}
    profile = own.pop("profile", None)
    own.pop("request", None)  # set in every command of a slot
    own.pop("ask", None)  # set by an older tool
    path, named = own.pop("config", None), own.pop("backend", None)
    options = with_backend({} if path is None else read_config(path), backend or named)
    if any(name.startswith(_OLDER_PREFIXES) for name in environ):
        _warn_of_older_names(environ)
    fields = config_type(str(options.get("backend", "local"))).model_fields
    for name, text in own.items():
        if name not in PoolConfig.model_fields and name not in fields:
            hint = nearest(name, [*PoolConfig.model_fields, *fields])
            raise ConfigError(f"{prefix}{name.upper()}: there is no option {name!r}; {hint}")
        options[name] = text if _is_text(name, fields) else _read(prefix + name.upper(), text)
    return options, profile


def _warn_of_older_names(environ: Mapping[str, str]) -> None:
    from hermes_exec.config.older_names import find_older_names

    if names := find_older_names(environ):
        message = f"{', '.join(names)}: not read; `hermes-exec config import` prints a configuration from them"
        warnings.warn(message, RuntimeWarning, stacklevel=4)  # at the caller of from_env


def _is_text(name: str, fields: Mapping[str, Any]) -> bool:
    field = PoolConfig.model_fields.get(name) or fields[name]
    return field.annotation in _TEXT_TYPES


def _read(name: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: the value is not YAML: {error}") from error
