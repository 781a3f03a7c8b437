"""Registry of backends: the built-in ones and the entry-point group `hermes_exec.backends`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes_exec.backends.base import Backend
from hermes_exec.config import BackendConfig, nearest
from hermes_exec.errors import BackendUnavailable, ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_exec.backends"
BUILT_IN: Mapping[str, str] = {
    "local": "hermes_exec.backends.local",
    "docker": "hermes_exec.backends.docker",
    "ssh": "hermes_exec.backends.ssh",
    "singularity": "hermes_exec.backends.singularity",
    "nomad": "hermes_exec.backends.nomad",
    "modal": "hermes_exec.backends.modal",
}


CLIENTS: Mapping[str, str] = {"docker": "docker", "nomad": "nomad", "modal": "modal"}
"""The modules of client libraries that backends require."""


class BackendModule(Protocol):
    """The target of an entry point of the group: a configuration class and a way to make its backend."""

    Config: type[BackendConfig]

    def create(self, config: BackendConfig) -> Backend:
        """Make the backend. Does no I/O and imports no vendor SDK."""


def _points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def backend_names() -> list[str]:
    """Return the names of all installed backends."""
    return sorted({*BUILT_IN, *_points()})


def has_client(name: str) -> bool:
    """Return whether the client library that a backend requires is installed."""
    return name not in CLIENTS or find_spec(CLIENTS[name]) is not None


def backend_module(name: str) -> BackendModule:
    """Return the module of a backend. Others cannot replace built-in names.

    Raises:
        ConfigError: If no backend has this name; the nearest one is named.
        BackendUnavailable: If the backend is not installed, or cannot be imported.
    """
    if name in BUILT_IN:
        return cast(BackendModule, import_module(BUILT_IN[name]))
    point = _points().get(name)
    if point is None:
        raise ConfigError(f"there is no backend {name!r}; {nearest(name, backend_names())}")
    try:
        module = point.load()
    except ImportError as error:
        mend = f"pip install -U {point.dist.name}" if point.dist else f"install what {point.module} needs"
        raise BackendUnavailable(f"the backend {name!r} cannot be loaded ({error}): {mend}") from error
    config = getattr(module, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BackendConfig) and callable(getattr(module, "create", 0))):
        raise BackendUnavailable(f"the backend {name!r} ({point.value}) has no Config and create")
    return cast(BackendModule, module)


def config_type(name: str) -> type[BackendConfig]:
    """Return the configuration class of a backend. Raises like `backend_module`."""
    return backend_module(name).Config


def config_types() -> dict[str, type[BackendConfig]]:
    """Return the configuration classes of all backends that can be loaded, by name."""
    types = {}
    for name in backend_names():
        try:
            types[name] = config_type(name)
        except BackendUnavailable:
            continue
    return types


def make_backend(backend: str | BackendConfig, options: Mapping[str, Any] | None = None) -> Backend:
    """Make a backend from its name and options, or from a configuration object. Starts nothing.

    Raises:
        ConfigError: If the name or an option is unknown or wrong.
        BackendUnavailable: If the backend is not installed.
    """
    if isinstance(backend, BackendConfig):
        if options:
            raise ConfigError(f"options ({', '.join(sorted(options))}) belong into the {type(backend).__name__} object")
        return backend.wrap(backend_module(type(backend).backend).create(backend))
    module = backend_module(backend)
    return module.create(module.Config.of(dict(options or {})))
