"""Importer for the option names of older systems, with a table of their new names."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from hermes_exec.config.loading import read_config
from hermes_exec.config.model import nearest
from hermes_exec.config.pool import ProfileConfig
from hermes_exec.errors import ConfigError


class Row(NamedTuple):
    """A row of the table: the new `option` of a name, or why it is `gone`. `of` lists the backends it is for."""

    option: str
    gone: str
    of: str


def _rows() -> Iterator[tuple[str, Row]]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for of, rows in table["became"].items():
        yield from ((name, Row(option, "", of)) for option, names in rows.items() for name in names.split())
    for of, rows in table["gone"].items():
        yield from ((name, Row("", why, of)) for why, names in rows.items() for name in names.split())


ROWS: Mapping[str, Row] = dict(_rows())
"""The rows by name, in the order of the table."""
FIELDS = frozenset(name for name in ROWS if name.islower() and "." not in name)
"""The fields of an RL environment."""
_KEYS = {name.removeprefix("profile."): row for name, row in ROWS.items() if name.startswith("profile.")}
_PROFILE = re.compile(rf"(TERMINAL|ATROPOS)_MODAL_PROFILE_(?P<name>\w+?)_(?P<key>{'|'.join(_KEYS).upper()})")
_NOMAD_CLIENT_VARS = frozenset(name for name in ROWS if name.startswith("NOMAD_")) - {
    "NOMAD_CACERT",
    "NOMAD_SKIP_VERIFY",
}
"""Variables that Nomad's client reads everywhere."""
_APPTAINER_IMAGES = {"TERMINAL_NOMAD_APPTAINER_IMAGE": "TERMINAL_NOMAD_DRIVER", "singularity_image": "driver"}
"""Images for one driver of Nomad, and the name that selects the driver."""
BACKENDS = {name: name for name in ("local", "docker", "ssh", "singularity", "modal", "nomad")}
BACKENDS |= {"apptainer": "singularity"}


class ImportedConfig(NamedTuple):
    """Options as SandboxPool takes them, the new option of each name, and a sentence for each omitted name."""

    options: dict[str, Any]
    became: dict[str, str]
    left_out: list[str]


def _list(value: object) -> tuple[str, ...]:
    """Read a list, JSON text or comma-separated names."""
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError("it is no list of texts")
    return tuple(one.strip() for one in value if one.strip())


def _mapping(value: object) -> dict[str, str]:
    """Read a mapping, JSON text or `NAME=VALUE` pairs separated by semicolons."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        parts = [part.strip() for part in value.split(";") if part.strip()]
        if wrong := [part for part in parts if "=" not in part]:
            raise ValueError(f"{wrong[0]!r} is not NAME=VALUE")
        value = dict(part.split("=", 1) for part in parts)
    elif isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise ValueError("it is no mapping of names to values")
    return {str(name).strip(): str(content).strip() for name, content in value.items()}


def _boolean(value: object) -> bool:
    booleans = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if (boolean := booleans.get(str(value).strip().lower())) is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return boolean


def _number(value: Any) -> float:  # noqa: ANN401 - any value of a file
    try:
        number = float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{value!r} is no number") from None
    return int(number) if number.is_integer() else number


def _workdir(value: object) -> object:
    """Return the directory, or None for the workspace: the path of a workspace depends on the isolation level."""
    return None if isinstance(value, str) and value.rstrip("/") == "/workspace" else value


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("slots_per_sandbox", "min_sandboxes", "max_sandboxes", "hosts.port"), _number),
    **dict.fromkeys(("idle_timeout_s", "max_lifetime_s", "acquire_timeout_s"), _number),
    "environment.terminal_timeout_s": _number,
    **dict.fromkeys(("limits.cpus", "limits.memory_mb"), lambda value: _number(value) or None),  # 0 meant no limit
    **dict.fromkeys(("network", "purge_on_start", "purge_on_shutdown"), _boolean),
    **dict.fromkeys(("volumes", "modal_secrets"), _list),
    "env": _mapping,
    "workdir": _workdir,
    "driver": lambda value: "singularity" if value == "raw_exec" else value,
    "min_isolation": lambda wanted: "namespaces" if _boolean(wanted) else "none",
}
"""Parsers of values by their new option. Other values stay as they are."""


def find_older_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that `import_names` would read, except the ones that Nomad's client reads."""
    names = ROWS.keys() - _NOMAD_CLIENT_VARS - FIELDS
    return sorted(name for name, text in environ.items() if text and (name in names or _PROFILE.fullmatch(name)))


def import_names(settings: Mapping[str, object], backend: str | None = None) -> ImportedConfig:
    """Import the variables of older tools, or the fields of an older RL environment.

    `backend` is the type of the chosen backend. Without it the names decide; the default is local.

    Raises:
        ConfigError: If a value cannot be read, or the backend has no counterpart here.
    """
    stripped = {name: value.strip() if isinstance(value, str) else value for name, value in settings.items()}
    settings = {name: value for name, value in stripped.items() if value not in (None, "")}
    asked = None if backend else _backend(settings)
    chosen = backend or asked or "local"
    imported = ImportedConfig({"backend": asked} if asked else {}, {}, [])
    for name, row in ROWS.items():
        if name not in settings:
            continue
        if row.of != "every" and chosen not in row.of.split():
            imported.left_out.append(f"{name} is left out: it is about {' and '.join(row.of.split())}, not {chosen}")
        elif row.option == "backend" and backend:
            imported.left_out.append(f"{name}={settings[name]} is left out: the backend is {backend}")
        elif (driver := _APPTAINER_IMAGES.get(name)) and str(settings.get(driver, "docker")).lower() == "docker":
            imported.left_out.append(f"{name} is left out: it is for {driver}=singularity")
        else:
            _import_value(imported, name, row, settings[name])
    for profile, keys in _profiles(settings, chosen, imported).items():
        inside = () if profile.lower() == "default" else ("profiles", profile)  # the default profile is the pool itself
        _import_profile(imported, f"profile {profile}: ", keys, inside)
    unknown = sorted(n for n in settings.keys() - ROWS if n.startswith("TERMINAL_") and not _PROFILE.fullmatch(n))
    imported.left_out.extend(f"{name} is left out: it means nothing here" for name in unknown)
    return imported


def import_profiles(path: str | PathLike[str]) -> ImportedConfig:
    """Import a file of Modal profiles, in either format: the profiles, and the default one as the pool's own options.

    Raises:
        ConfigError: If the file cannot be read, or has unknown names.
    """
    content = read_config(path)
    profiles = content.get("profiles", content)
    if not isinstance(profiles, Mapping) or not profiles:
        raise ConfigError(f"{path}: there are no profiles in it")
    default = content.get("default_profile") or ("default" if "default" in profiles else None)
    if default is not None and default not in profiles:
        raise ConfigError(
            f"{path}: default_profile {default!r}: there is no such profile; {nearest(default, profiles)}"
        )
    imported = ImportedConfig({"profiles": {str(name): {} for name in profiles}}, {}, [])
    for name, values in profiles.items():
        _import_profile(imported, f"{path}: {name}.", values, ("profiles", str(name)))
    merged = imported.options["profiles"]
    own = deepcopy(merged.get(default, {}))
    # The pool takes the minimum of the default profile; keeping it in the profile too would double it.
    merged.get(default, {}).pop("min_sandboxes", None)
    most = [profile.get("max_sandboxes") for profile in merged.values()]
    return imported._replace(options={**own, "max_sandboxes": None if None in most else sum(most), **imported.options})


def import_file(path: str | PathLike[str], backend: str | None = None) -> ImportedConfig:
    """Import a file of Modal profiles, or of settings of an older RL environment. `backend`: see `import_names`.

    Raises:
        ConfigError: If the file is neither, cannot be read, or has a wrong value.
    """
    content = read_config(path)
    section = content.get("env", content)
    if not isinstance(section, Mapping) or "profiles" in content:
        section = {}
    if fields := FIELDS & section.keys():
        imported = import_names({name: section[name] for name in fields}, backend or section.get("backend"))
        if others := sorted(map(str, section.keys() - FIELDS)):
            imported.left_out.append(f"the environment keeps {', '.join(others)}")
        return imported
    if "env" in content or not all(isinstance(value, Mapping) for value in content.get("profiles", content).values()):
        raise ConfigError(f"{path} has neither profiles of Modal nor fields of an older environment in its section env")
    if backend not in (None, "modal"):
        raise ConfigError(f"{path} has profiles of Modal, which are not for the backend {backend}")
    imported = import_profiles(path)
    return imported._replace(options={"backend": "modal", **imported.options})


def _import_value(imported: ImportedConfig, name: str, row: Row, value: object, inside: tuple[str, ...] = ()) -> None:
    """Import the value of a name into the options, below `inside`."""
    if not row.option:
        imported.left_out.append(f"{name} is left out: {row.gone}")
        return
    imported.became[name] = row.option
    if row.option in ("backend", "profiles"):
        return  # read by the caller
    *outer, last = row.option.split(".")
    if inside and [*outer, last][0] not in ProfileConfig.model_fields:
        outer = ["backend_options"]
    options = imported.options
    for part in (*inside, *outer):
        options = options.setdefault(part, {})
    try:
        options[last] = _PARSERS[row.option](value) if row.option in _PARSERS else value
    except ValueError as error:
        raise ConfigError(f"{name} cannot be read: {error}") from None


def _import_profile(imported: ImportedConfig, where: str, values: object, inside: tuple[str, ...]) -> None:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.')}: a profile is a mapping of names to values")
    for key in values:
        if key not in _KEYS:
            raise ConfigError(f"{where.rstrip('.')}: there is no {key!r}; {nearest(str(key), _KEYS)}")
    for key, row in _KEYS.items():
        if values.get(key) is not None:
            _import_value(imported, where + key, row, values[key], inside)


def _profiles(settings: Mapping[str, Any], chosen: str, imported: ImportedConfig) -> dict[str, dict[str, object]]:
    """Return the profiles that variables define, named as in `ATROPOS_MODAL_PROFILES`."""
    called = {name.upper().replace("-", "_"): name for name in _list(settings.get("ATROPOS_MODAL_PROFILES", ""))}
    profiles: dict[str, dict[str, object]] = {}
    for name in sorted(settings):
        if (parts := _PROFILE.fullmatch(name)) and chosen == "modal":
            own = profiles.setdefault(called.get(parts["name"], parts["name"]), {})
            own[parts["key"].lower()] = settings[name]
        elif parts:
            imported.left_out.append(f"{name} is left out: it is about modal, not {chosen}")
    return profiles


def _backend(settings: Mapping[str, object]) -> str | None:
    for name in ("TERMINAL_ENV", "tool_pool_mode", "terminal_backend"):
        chosen = str(settings.get(name, "default")).lower()
        if chosen == "slot_pool":
            name, chosen = "TERMINAL_SLOT_BACKEND", str(settings.get("TERMINAL_SLOT_BACKEND", "modal")).lower()
        if chosen in BACKENDS:
            return BACKENDS[chosen]
        if chosen != "default":
            raise ConfigError(f"{name}={chosen!r} has no counterpart; the backends are {', '.join(sorted(BACKENDS))}")
    return None
