"""Import of the TERMINAL_* names of older tools: a pure function from an environment to our options and warnings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hermes_exec.errors import ConfigError

BACKENDS = {"local": "local", "docker": "docker", "singularity": "singularity", "modal": "modal", "ssh": "ssh"}
BACKENDS |= {"apptainer": "singularity", "nomad": "nomad"}


class Imported(NamedTuple):
    """Options as SandboxPool takes them, and one warning for each name that was read."""

    options: dict[str, Any]
    warnings: list[str]


class Rule(NamedTuple):
    """Where a value goes (``limits.cpus`` is a nested one), how it is read, and for which backends it counts."""

    option: str
    read: Callable[[str], Any] = str
    backends: frozenset[str] = frozenset()


def _strings(text: str) -> tuple[str, ...]:
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise ValueError("not a JSON list of strings")
    return tuple(values)


def _mapping(text: str) -> dict[str, str]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise TypeError("not a JSON object")
    return {str(k): str(v) for k, v in values.items()}


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.strip().lower() not in known:
        raise ValueError("neither true nor false")
    return known[text.strip().lower()]


def _count(text: str) -> int:
    return int(float(text))


DOCKER, MODAL, NOMAD, SSH = (frozenset({name}) for name in ("docker", "modal", "nomad", "ssh"))
BOXES = frozenset({"docker", "modal", "singularity", "nomad"})
RULES: Mapping[str, Rule] = {
    "TERMINAL_DOCKER_IMAGE": Rule("image", backends=DOCKER),
    "TERMINAL_DOCKER_VOLUMES": Rule("volumes", _strings, DOCKER),
    "TERMINAL_DOCKER_ENV": Rule("env", _mapping, DOCKER),
    "TERMINAL_DOCKER_NETWORK": Rule("network", _truth, DOCKER),
    "TERMINAL_SINGULARITY_IMAGE": Rule("image", backends=frozenset({"singularity"})),
    "TERMINAL_CONTAINER_CPU": Rule("limits.cpus", float, BOXES),
    "TERMINAL_CONTAINER_MEMORY": Rule("limits.memory_mb", _count, BOXES),
    "TERMINAL_CONTAINER_DISK": Rule("limits.disk_mb", _count, BOXES),
    "TERMINAL_LIFETIME_SECONDS": Rule("idle_timeout_s", float),
    "TERMINAL_SSH_HOST": Rule("host", backends=SSH),
    "TERMINAL_SSH_USER": Rule("user", backends=SSH),
    "TERMINAL_SSH_PORT": Rule("port", int, SSH),
    "TERMINAL_SSH_KEY": Rule("key_path", backends=SSH),
    "TERMINAL_MODAL_IMAGE": Rule("image", backends=MODAL),
    "TERMINAL_MODAL_GPU": Rule("gpu", backends=MODAL),
    "TERMINAL_MODAL_CPU": Rule("limits.cpus", float, MODAL),
    "TERMINAL_MODAL_MEMORY": Rule("limits.memory_mb", _count, MODAL),
    "TERMINAL_MODAL_SLOTS": Rule("slots_per_sandbox", int, MODAL),
    "TERMINAL_MODAL_MIN": Rule("min_sandboxes", int, MODAL),
    "TERMINAL_MODAL_MAX": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_POOL_MAX": Rule("max_sandboxes", int, MODAL),
    "TERMINAL_MODAL_IDLE_TIMEOUT": Rule("idle_timeout_s", float, MODAL),
    "TERMINAL_MODAL_MAX_LIFETIME": Rule("max_lifetime_s", float, MODAL),
    "TERMINAL_MODAL_ACQUIRE_TIMEOUT": Rule("acquire_timeout_s", float, MODAL),
    "TERMINAL_MODAL_APP_NAME": Rule("app_name", backends=MODAL),
    "TERMINAL_SLOT_APP_NAME": Rule("app_name", backends=MODAL),
    "TERMINAL_NOMAD_ADDRESS": Rule("address", backends=NOMAD),
    "TERMINAL_NOMAD_IMAGE": Rule("image", backends=NOMAD),
    "TERMINAL_NOMAD_DRIVER": Rule("driver", backends=NOMAD),
    "TERMINAL_NOMAD_SLOTS": Rule("slots_per_sandbox", int, NOMAD),
    "TERMINAL_NOMAD_MIN": Rule("min_sandboxes", int, NOMAD),
    "TERMINAL_NOMAD_MAX": Rule("max_sandboxes", int, NOMAD),
}
CHOOSERS = {"TERMINAL_ENV", "TERMINAL_SLOT_BACKEND"}


def import_terminal_names(environ: Mapping[str, str]) -> Imported:
    """Options for the ``TERMINAL_*`` names in ``environ``, with a warning a name that says what it became or why not.

    Names of other backends than the chosen one are passed over in silence: they say nothing about this pool.

    Raises:
        ConfigError: a value cannot be read.
    """
    names = sorted(name for name in environ if name.startswith("TERMINAL_") and environ[name].strip())
    if not names:
        return Imported({}, [])
    backend = _backend(environ)
    options: dict[str, Any] = {}
    warnings: list[str] = []
    if backend is not None:
        options["backend"] = backend
        warnings += [f"{name}={environ[name]} is read as backend={backend!r}" for name in names if name in CHOOSERS]
    for name in names:
        rule = RULES.get(name)
        if name in CHOOSERS:
            continue
        if rule is None:
            warnings.append(f"{name} has no meaning for hermes-exec and is left out")
        elif not rule.backends or (backend or "local") in rule.backends:
            _put(options, rule.option, _read(name, rule, environ[name]))
            warnings.append(f"{name} is read as {rule.option}; write that instead")
    return Imported(options, warnings)


def _backend(environ: Mapping[str, str]) -> str | None:
    chosen = environ.get("TERMINAL_ENV", "").strip().lower()
    if chosen == "slot_pool":
        chosen = environ.get("TERMINAL_SLOT_BACKEND", "").strip().lower() or "modal"
    if not chosen:
        return None
    if chosen not in BACKENDS:
        raise ConfigError(f"TERMINAL_ENV={chosen!r} has no counterpart; the backends are {', '.join(sorted(BACKENDS))}")
    return BACKENDS[chosen]


def _read(name: str, rule: Rule, text: str) -> object:
    try:
        return rule.read(text)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name}={text!r} cannot be read: {error}") from error


def _put(options: dict[str, Any], path: str, value: object) -> None:
    *outer, last = path.split(".")
    for part in outer:
        options = options.setdefault(part, {})
    options[last] = value
