"""Compose files: the service that a slot can take the place of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inspect_ai.util import ComposeBuild, ComposeConfig, ComposeService

from hermes_exec import ConfigError

WITHOUT_EFFECT = frozenset({
    "command", "entrypoint", "expose", "healthcheck", "init", "mem_reservation", "platform", "pull_policy", "restart",
    "stdin_open", "stop_grace_period", "tty", "x_default",
})  # fmt: skip
"""Fields that keep a container running and ready; a slot is."""
UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30}


def read_service(config: ComposeConfig, directory: Path) -> dict[str, Any]:
    """Return the options of the pool whose slots take the place of the only service; `directory` holds the file.

    Raises:
        ConfigError: If there are several services, or if one has a field that slots cannot honour.
    """
    if len(config.services) != 1:
        raise ConfigError(f"it has {len(config.services)} services and a slot is one: use the sandbox 'docker'")
    ((name, service),) = config.services.items()
    fields = {key for key in type(service).model_fields if getattr(service, key) is not None} - WITHOUT_EFFECT
    if unknown := sorted(fields - READERS.keys()):
        raise ConfigError(
            f"service {name!r} has {', '.join(unknown)}, which slots cannot have: use the sandbox 'docker'"
        )
    options: dict[str, Any] = {"backend": "docker", "workdir": "image"}
    for key in sorted(fields):
        for option, value in READERS[key](service, directory).items():
            options[option] = {**options[option], **value} if isinstance(options.get(option), dict) else value
    if "image" not in options:
        raise ConfigError(f"service {name!r} has neither image nor build")
    return options


def _build(service: ComposeService, directory: Path) -> dict[str, Any]:
    build = service.build if isinstance(service.build, ComposeBuild) else ComposeBuild(context=service.build)
    if build.dockerfile not in (None, "Dockerfile"):
        raise ConfigError(f"build.dockerfile={build.dockerfile!r}: only a file with the name Dockerfile can be built")
    return {"image": f"dockerfile:{directory / (build.context or '.')}"}


def _image(service: ComposeService, directory: Path) -> dict[str, Any]:
    return {} if service.build is not None else {"image": service.image}


def _environment(service: ComposeService, directory: Path) -> dict[str, Any]:
    given = service.environment
    pairs = given if isinstance(given, Mapping) else dict(_variable(word) for word in given or ())
    if missing := sorted(name for name, value in pairs.items() if value is None):
        raise ConfigError(
            f"environment: {', '.join(missing)} has no value, and those of this process are not passed on"
        )
    return {"env": dict(pairs)}


def _variable(text: str) -> tuple[str, str | None]:
    name, separator, value = text.partition("=")
    return name, value if separator else None


def _network_mode(service: ComposeService, directory: Path) -> dict[str, Any]:
    if service.network_mode == "none":
        return {"network": False}
    return {"network_mode": service.network_mode}


def _deploy(service: ComposeService, directory: Path) -> dict[str, Any]:
    resources = service.deploy and service.deploy.resources
    if resources and resources.reservations and resources.reservations.devices:
        raise ConfigError("deploy.resources.reservations.devices: name the GPUs in a pool.yaml, as gpus")
    limits = resources and resources.limits
    return _limits(cpus=limits.cpus, memory=limits.memory) if limits else {}


def _limits(cpus: float | str | None = None, memory: str | None = None) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if cpus is not None:
        try:
            limits["cpus"] = float(cpus)
        except ValueError:
            raise ConfigError(f"cpus: {cpus!r} is no number: write it as 1.5") from None
    if memory is not None:
        limits["memory_mb"] = _megabytes(memory)
    return {"limits": limits}


def _megabytes(text: str | int) -> int:
    match = re.fullmatch(r"(\d+\.?\d*)\s*([a-z]*)", str(text).strip().lower())
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"memory: {text!r} is no size: write it as 512m or 2g")
    return max(1, int(float(match[1]) * 2 ** UNITS[match[2]]) >> 20)


READERS: dict[str, Callable[[ComposeService, Path], dict[str, Any]]] = {
    "image": _image,
    "build": _build,
    "working_dir": lambda service, _: {"workdir": service.working_dir},
    "environment": _environment,
    "user": lambda service, _: {"user": service.user},
    "hostname": lambda service, _: {"hostname": service.hostname},
    "runtime": lambda service, _: {"runtime": service.runtime},
    "privileged": lambda service, _: {"privileged": service.privileged},
    "read_only": lambda service, _: {"read_only": service.read_only},
    "cap_add": lambda service, _: {"cap_add": service.cap_add},
    "cap_drop": lambda service, _: {"cap_drop": service.cap_drop},
    "security_opt": lambda service, _: {"security_opt": service.security_opt},
    "shm_size": lambda service, _: {"shm_size_mb": _megabytes(service.shm_size or 0)},
    "network_mode": _network_mode,
    "deploy": _deploy,
    "cpus": lambda service, _: _limits(cpus=service.cpus),
    "mem_limit": lambda service, _: _limits(memory=service.mem_limit),
}
"""The fields that become options of the pool."""
