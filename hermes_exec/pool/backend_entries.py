"""Named backends: the section `backends` of a configuration, and the settings of a pool on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_exec.backends.registry import backend_names, config_type, config_types
from hermes_exec.config import BackendConfig, PoolConfig, backend_sections, merge_options, nearest, resolve_config
from hermes_exec.config.loading import BACKENDS
from hermes_exec.errors import BackendUnavailable, ConfigError


def with_backend(values: Mapping[str, Any], name: str | BackendConfig | None = None) -> dict[str, Any]:
    """Return the settings of a pool on one backend; its entry in `backends` overrides the top-level keys.

    `name` is the name of an entry or a backend type; by default, the value of the setting `backend`. Settings without
    the section are returned unchanged, with the requested backend.

    Raises:
        ConfigError: If there is no such name, if none was chosen among several, or if the entry or a top-level key is
            invalid.
        BackendUnavailable: If a backend of that type is not installed.
    """
    entries = backend_sections(values)
    common = {key: value for key, value in values.items() if key != BACKENDS}
    chosen = common.get("backend") if name is None else name
    if entries:
        _check_common(common)
    if isinstance(chosen, str) and chosen in entries:
        return merge_options(common, _parse_entry(chosen, entries[chosen]))
    if entries and chosen is None:
        names = ", ".join(entries)
        raise ConfigError(f"there are several backends here, choose one: backend=… (--backend …), one of {names}")
    if entries and isinstance(chosen, str) and chosen not in backend_names():
        raise ConfigError(f"there is no backend {chosen!r}; {nearest(chosen, [*entries, *backend_names()])}")
    return common if chosen is None else {**common, "backend": chosen}


def _parse_entry(name: str, entry: object) -> dict[str, Any]:
    """Return the settings of an entry, with its type as the setting `backend`. Raises as `with_backend`."""
    where = f"{BACKENDS}.{name}: "
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}an entry is a mapping with `type` and the options of that backend")
    own = dict(entry)
    backend_type = own.pop("type", None)
    if not isinstance(backend_type, str) or "backend" in own:
        raise ConfigError(f"{where}`type` names the backend type, one of {', '.join(backend_names())}")
    own["backend"] = backend_type
    try:
        resolve_config(own, config_type(backend_type))
    except ConfigError as error:
        raise ConfigError("\n".join(where + line for line in str(error).splitlines())) from None
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{where}{error}") from error
    return own


def _check_common(common: Mapping[str, Any]) -> None:
    """Refuse top-level keys that are not options of every pool. Raises ConfigError."""
    wrong = []
    for name in common.keys() - PoolConfig.model_fields.keys():
        if name == "backend_options" or any(name in config.model_fields for config in config_types().values()):
            wrong.append(f"{name} belongs to a backend: move it into an entry of {BACKENDS}")
        else:
            wrong.append(f"there is no option {name!r}; {nearest(name, [*PoolConfig.model_fields, BACKENDS])}")
    if wrong:
        raise ConfigError("\n".join(sorted(wrong)))
