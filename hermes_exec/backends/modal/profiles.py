"""Files of profiles for Modal, in both shapes that are in use, as options of a pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hermes_exec.config.loading import read_config
from hermes_exec.config.model import nearest
from hermes_exec.config.pool import PoolConfig
from hermes_exec.errors import ConfigError

logger = logging.getLogger(__name__)


def _names(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(str(part).strip() for part in parts if str(part).strip()) if isinstance(parts, list | tuple) else ()


def _variables(value: object) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(content) for name, content in value.items()}
    parts = str(value or "").split(";")
    if wrong := [part for part in parts if part.strip() and "=" not in part]:
        raise ConfigError(f"{wrong[0]!r} is not NAME=VALUE")
    return {name.strip(): content for name, _, content in (part.partition("=") for part in parts if part.strip())}


def _itself(value: Any) -> Any:  # noqa: ANN401 -- what the file holds; it is checked as an option of the pool
    return value


MEANINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "image": ("image", _itself),
    "cpu": ("limits.cpus", _itself),
    "memory": ("limits.memory_mb", _itself),
    "slots_per_sandbox": ("slots_per_sandbox", _itself),
    "min_sandboxes": ("min_sandboxes", _itself),
    "min_pool": ("min_sandboxes", _itself),
    "max_sandboxes": ("max_sandboxes", _itself),
    "max_pool": ("max_sandboxes", _itself),
    "idle_timeout": ("idle_timeout_s", _itself),
    "scale_down_idle": ("idle_timeout_s", _itself),
    "max_lifetime": ("max_lifetime_s", _itself),
    "workdir": ("workdir", _itself),
    "env_vars": ("env", _variables),
    "env": ("env", _variables),
    "gpu": ("backend_options.gpus", _itself),
    "secrets": ("backend_options.modal_secrets", _names),
    "volumes": ("backend_options.volumes", _itself),
    "region": ("backend_options.region", _itself),
    "cloud": ("backend_options.cloud", _itself),
    "app_name": ("backend_options.app_name", _itself),
}
"""What a name in a profile is here; of two that are the same, the later in this table counts."""
WITHOUT_MEANING = {
    "name": "the profile's own name counts",
    "acquire_timeout_s": "it is the pool's acquire_timeout_s",
    "execution_timeout_s": "it is timeout_s of each call",
    "workspace_base": "slots have their workspaces in /workspace",
    "use_dotenv": "no .env file is read: give secrets to the pool",
}


def with_profiles(values: dict[str, Any], path: str) -> dict[str, Any]:
    """The options of a pool with the profiles of a file; what the pool itself says counts more.

    Raises:
        ConfigError: the file cannot be read, or has names that mean nothing.
    """
    content = read_config(path)
    found = content.get("profiles", content)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{path}: there are no profiles in it")
    default = content.get("default_profile") or ("default" if "default" in found else None)
    if default is not None and default not in found:
        raise ConfigError(f"{path}: default_profile {default!r}: there is no such profile; {nearest(default, found)}")
    profiles = {str(name): _profile(f"{path}: {name}", profile) for name, profile in found.items()}
    most = [profile.get("max_sandboxes") for profile in profiles.values()]
    own = dict(profiles[default]) if default is not None else {}
    # The minimum of the default profile is the pool's; another one for the profile itself would double it.
    own["max_sandboxes"] = None if None in most else sum(most)
    if default is not None:
        profiles[default].pop("min_sandboxes", None)
    merged = {**values, "profiles": {**profiles, **dict(values.get("profiles") or {})}}
    for name, value in own.items():
        if name == "backend_options":
            merged[name] = {**{key: one for key, one in value.items() if key not in values}, **(values.get(name) or {})}
        elif _unsaid(values, name):
            merged[name] = value
    return merged


def _unsaid(values: Mapping[str, Any], name: str) -> bool:
    given = values.get(name)
    return given in (None, {}, ()) or given == PoolConfig.model_fields[name].get_default(call_default_factory=True)


def _profile(where: str, profile: object) -> dict[str, Any]:
    if not isinstance(profile, Mapping):
        raise ConfigError(f"{where}: a profile is a mapping of names to values")
    for name in profile:
        if name in WITHOUT_MEANING:
            logger.warning("%s.%s is left out: %s", where, name, WITHOUT_MEANING[name])
        elif name not in MEANINGS:
            raise ConfigError(f"{where}: there is no {name!r}; {nearest(str(name), MEANINGS)}")
    made: dict[str, Any] = {}
    for name, (option, read) in MEANINGS.items():
        if profile.get(name) is None:
            continue
        outer, _, inner = option.partition(".")
        try:
            value = read(profile[name])
        except ConfigError as error:
            raise ConfigError(f"{where}.{name}: {error}") from None
        if inner:
            made.setdefault(outer, {})[inner] = value
        else:
            made[outer] = value
    return made
