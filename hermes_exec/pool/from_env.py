"""A pool's options from an environment: names after a prefix, a file that one of them names, and the older names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import SecretStr

from hermes_exec.backends.registry import config_type
from hermes_exec.config import PoolConfig, import_older_names, nearest, read_config
from hermes_exec.errors import ConfigError
from hermes_exec.pool.named import with_backend

logger = logging.getLogger(__name__)
_TEXTS = (str, str | None, SecretStr, SecretStr | None)


def options_from(
    environ: Mapping[str, str], prefix: str, backend: str | None = None
) -> tuple[dict[str, Any], str | None]:
    """The options, with those of one backend where the file names several, and the profile that is asked for. `backend`
    counts more than the variable of that name. Warnings about older names are logged.

    Raises:
        ConfigError: a value cannot be read, or a name after the prefix is no option.
    """
    own = {name[len(prefix) :].lower(): text for name, text in environ.items() if name.startswith(prefix) and text}
    profile = own.pop("profile", None)
    own.pop("request", None)  # the mark of a command in a slot
    own.pop("ask", None)  # an older tool's, see `config.older_names`
    path, named = own.pop("config", None), own.pop("backend", None)
    options = with_backend({} if path is None else read_config(path), backend or named)
    imported = import_older_names(environ, options.get("backend"))
    for warning in imported.warnings:
        logger.warning("%s", warning)
    options = {**imported.options, **options}
    fields = config_type(str(options.get("backend", "local"))).model_fields
    for name, text in own.items():
        if name not in PoolConfig.model_fields and name not in fields:
            hint = nearest(name, [*PoolConfig.model_fields, *fields])
            raise ConfigError(f"{prefix}{name.upper()}: there is no option {name!r}; {hint}")
        options[name] = text if _is_text(name, fields) else _read(prefix + name.upper(), text)
    return options, profile


def _is_text(name: str, fields: Mapping[str, Any]) -> bool:
    field = PoolConfig.model_fields.get(name) or fields[name]
    return field.annotation in _TEXTS


def _read(name: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: the value is not YAML: {error}") from error
