"""Configuration from files and mappings: YAML, TOML or JSON as validated models, and the JSON schema of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.limits import Limits
from hermes_exec.config.model import ConfigModel, nearest
from hermes_exec.config.pool import PoolConfig
from hermes_exec.errors import ConfigError


def _read_yaml(text: str) -> Any:  # noqa: ANN401 - any value of YAML
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _read_toml(text: str) -> Any:  # noqa: ANN401 - any value of TOML
    import tomllib

    return tomllib.loads(text)


Loader = Callable[[str], Any]
LOADERS: Mapping[str, Loader] = {".yaml": _read_yaml, ".yml": _read_yaml, ".toml": _read_toml, ".json": json.loads}

BACKENDS = "backends"
"""The section of a configuration that names several backends."""


class ResolvedConfig(NamedTuple):
    """A pool's configuration and its backend's."""

    pool: PoolConfig
    backend: BackendConfig


def read_config(source: str | PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Read the mapping of a configuration file, whose suffix names the format, or copy a mapping.

    Raises:
        ConfigError: If the file cannot be read, or is not a mapping.
    """
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    loader = LOADERS.get(path.suffix.lower())
    if loader is None:
        raise ConfigError(f"{path}: a configuration file ends with {', '.join(LOADERS)}")
    try:
        values = loader(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{path}: it is nested too deeply") from None
    if values is None:
        values = {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path}: a configuration is a mapping of names to values")
    return values


def backend_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of each backend that a configuration names; empty without such a section.

    Raises:
        ConfigError: If the section is not a mapping of names.
    """
    section = values.get(BACKENDS)
    if section is None:
        return {}
    if not isinstance(section, Mapping) or not all(isinstance(name, str) and name for name in section):
        raise ConfigError(f"{BACKENDS} is a mapping of names to {{type: …}} with the options of that backend")
    return dict(section)


def resolve_config(values: Mapping[str, Any], config_type: type[BackendConfig]) -> ResolvedConfig:
    """Validate flat options as `SandboxPool` takes them: those for the pool and those for the backend.

    The backend's options may also be grouped under `backend_options`.

    Raises:
        ConfigError: If names are unknown or values wrong. The message lists all of them, with the nearest valid names.
    """
    values = config_type.expand(dict(values))
    pool_names, backend_names = PoolConfig.model_fields, config_type.model_fields
    pool: dict[str, Any] = {}
    backend: dict[str, Any] = dict(values.get("backend_options") or {})
    wrong = []
    for name, value in values.items():
        if name in pool_names:
            pool[name] = value
        elif name in backend_names:
            backend[name] = value
        elif name != "backend_options":
            hint = nearest(name, [*pool_names, *backend_names])
            if (limit := name.removeprefix("limits.")) in Limits.model_fields:
                hint = f"it is a limit of a sandbox or a slot: limits={{{limit}: …}}, slot_limits={{{limit}: …}}"
            wrong.append(f"there is no option {name!r} for backend {config_type.backend!r}; {hint}")
    models: list[ConfigModel] = []
    for model, options in ((PoolConfig, pool), (config_type, backend)):
        try:
            models.append(model.of(options))
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigError("\n".join(wrong))
    return ResolvedConfig(*models)  # type: ignore[arg-type]


def pool_schema(config_types: Mapping[str, type[BackendConfig]]) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file for these backends."""
    schema = PoolConfig.model_json_schema()
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    schema.pop("additionalProperties", None)
    common: dict[str, Any] = schema["properties"]
    types = {"enum": sorted(config_types)}
    one, several = [], []
    for name, config_type in sorted(config_types.items()):
        own = config_type.model_json_schema()
        definitions |= own.pop("$defs", {})
        properties = {k: v for k, v in own["properties"].items() if k not in PoolConfig.model_fields}
        condition: dict[str, Any] = {"properties": {"backend": {"const": name}, "backends": False}}
        if name != PoolConfig.model_fields["backend"].default:
            condition["required"] = ["backend"]
        one.append({"if": condition, "then": {"properties": {**properties, "backend_options": {"type": "object"}}}})
        needed = {"properties": properties, "required": own.get("required", [])}
        several.append({"if": {"properties": {"type": {"const": name}}}, "then": needed})
    definitions["NamedBackend"] = {
        "type": "object",
        "description": "A backend by its type, with its options. It may override options of the pool.",
        "properties": {
            **{name: option for name, option in common.items() if name != "backend"},
            "type": types,
            "backend_options": {"type": "object"},
        },
        "required": ["type"],
        "allOf": several,
        "unevaluatedProperties": False,
    }
    common["backend"] |= {"examples": sorted(config_types)}
    common["backends"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/NamedBackend"}}
    schema |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "allOf": one,
        "unevaluatedProperties": False,
    }
    return schema
