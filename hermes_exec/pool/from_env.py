"""A pool's options from an environment: names after a prefix, and a file that one of them names."""

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

_OLDER = ("ATROPOS_", "HERMES_DOCKER_", "HERMES_WRITE_", "NOMAD_", "TERMINAL_", "TOOL_")
_TEXTS = (str, str | None, SecretStr, SecretStr | None)


def read_options(
    environ: Mapping[str, str], prefix: str, backend: str | None = None
) -> tuple[dict[str, Any], str | None]:
    """The options, with those of one backend where the file names several, and the profile that is asked for. `backend`
    counts more than the variable of that name. Names of older systems raise a RuntimeWarning.

    Raises:
        ConfigError: a value cannot be read, or a name after the prefix is no option.
    """
    own = {name[len(prefix) :].lower(): text for name, text in environ.items() if name.startswith(prefix) and text}
    profile = own.pop("profile", None)
    own.pop("request", None)  # the mark of a command in a slot
    own.pop("ask", None)  # an older tool's
    path, named = own.pop("config", None), own.pop("backend", None)
    options = with_backend({} if path is None else read_config(path), backend or named)
    if any(name.startswith(_OLDER) for name in environ):
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
        warnings.warn(message, RuntimeWarning, stacklevel=4)  # where from_env is called


def _is_text(name: str, fields: Mapping[str, Any]) -> bool:
    field = PoolConfig.model_fields.get(name) or fields[name]
    return field.annotation in _TEXTS


def _read(name: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: the value is not YAML: {error}") from error
