"""Options of a pool from environment variables with a prefix, and from a file that one of them names."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from hermes_exec.backends.registry import config_type
from hermes_exec.config import PoolConfig, nearest, read_config
from hermes_exec.errors import ConfigError
from hermes_exec.pool.backend_entries import with_backend

_OLDER_PREFIXES = ("ATROPOS_", "HERMES_DOCKER_", "HERMES_WRITE_", "NOMAD_", "TERMINAL_", "TOOL_")
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_TEXT_TYPES = (str, str | None, SecretStr, SecretStr | None)


def read_options(
    environ: Mapping[str, str], prefix: str, backend: str | None = None
) -> tuple[dict[str, Any], str | None]:
    """Return the options of a pool and the profile to use, from the variables with `prefix`.

    `backend` overrides the variable of that name. Where the file names several backends, the options include those of
    the chosen one. Names after the prefix that are no options, and names of older tools, cause a RuntimeWarning.

    Raises:
        ConfigError: If a value cannot be read.
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
            hint = nearest(name, ["config", "profile", *PoolConfig.model_fields, *fields])
            _warn(f"{prefix}{name.upper()}: not read, because there is no option {name!r}; {hint}")
            continue
        options[name] = text if _is_text(name, fields) else _read(prefix + name.upper(), text)
    return options, profile


def _warn_of_older_names(environ: Mapping[str, str]) -> None:
    from hermes_exec.config.older_names import find_older_names

    if names := find_older_names(environ):
        _warn(f"{', '.join(names)}: not read; `hermes-exec config import` prints a configuration from them")


def _warn(message: str) -> None:
    """Warn at the line that called this package: the default filter hides warnings of other places."""
    frame, depth = sys._getframe(), 1
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, RuntimeWarning, stacklevel=depth)


def _is_text(name: str, fields: Mapping[str, Any]) -> bool:
    field = PoolConfig.model_fields.get(name) or fields[name]
    return field.annotation in _TEXT_TYPES


def _read(name: str, text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: the value is not YAML: {error}") from error
