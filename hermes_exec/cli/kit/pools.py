"""The command-line options that describe a pool, and the pool itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.pool.pool import SandboxPool

PREFIX = "HERMES_EXEC_"
DISK_WAIT_S = 5.0
"""The default of `disk_wait_s` for a command, whose user can make room."""
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "-b",
        envvar="HERMES_EXEC_BACKEND",
        help="local, docker, ssh, singularity, nomad, modal, or a name in the file of --config (default: local).",
    ),
]
AnyBackend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "-b",
        envvar="HERMES_EXEC_BACKEND",
        help="Only this backend (default: all available ones, and those in the file of --config).",
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        "-i",
        envvar="HERMES_EXEC_IMAGE",
        help="Image of the sandboxes, where the backend has images (docker, modal: also dockerfile:DIR).",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="HERMES_EXEC_CONFIG",
        help="YAML, TOML or JSON file with the pool's settings; it may name several backends.",
    ),
]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of the configuration file.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="A field of pool or backend, such as network=false; may be repeated.",
    ),
]
TraceTo = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write the metadata of frames and events as JSON lines."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AlwaysJson = Annotated[bool, typer.Option("--json", hidden=True)]
"""The `--json` of commands that always print JSON."""


def make_pool(
    backend: str | None,
    image: str | None,
    config: Path | None = None,
    profile: str | None = None,
    options: list[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    slots: int = 1,
    **more: Any,
) -> SandboxPool:
    """Return the pool that the options describe; nothing is started.

    Options override the profile, the profile overrides the variables `HERMES_EXEC_…` of `environ`, and those override
    the rest of the configuration file. `max_sandboxes` is `slots` by default. `more` are further arguments of
    SandboxPool; None is left out.

    Raises:
        ConfigError: If there is an unknown name, a bad value, or a file that cannot be read.
    """
    settings = settings_of(backend, image, config, options, profile, environ)
    if slots > 1:
        settings.setdefault("max_sandboxes", slots)
    return pool_of(settings, **more)


def pool_of(settings: Mapping[str, Any], **more: Any) -> SandboxPool:
    """Return the pool of these settings, which shows the progress of pulls on the terminal. `more` as for `make_pool`.

    Raises:
        ConfigError: If there is an unknown name or a bad value.
    """
    from hermes_exec.cli.kit.pulling import PullDisplay
    from hermes_exec.pool.pool import SandboxPool

    arguments = {name: value for name, value in more.items() if value is not None}
    return SandboxPool.from_config({"disk_wait_s": DISK_WAIT_S, **settings}, **arguments, on_pull=PullDisplay())


def settings_of(
    backend: str | None,
    image: str | None,
    config: Path | None,
    options: list[str] | None,
    profile: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Return the settings as one flat mapping, in the form of a configuration file with one backend.

    The settings of a backend that the file names are included.

    Raises:
        ConfigError: If a file cannot be read, an option or variable is bad, or the file has no such backend or profile.
        BackendUnavailable: If the backend is not installed.
    """
    from hermes_exec.config import with_profile
    from hermes_exec.pool.from_env import read_options

    own = parse_options(options) | ({} if image is None else {"image": image})
    own_backend = own.pop("backend", None)
    chosen = {"backend": backend or own_backend, "image": image, "config": config, "profile": profile}
    named = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    named |= {PREFIX + name.upper(): str(value) for name, value in chosen.items() if value is not None}
    settings, profile = read_options(named, PREFIX)
    if profile is not None:
        settings = with_profile(settings, profile)
    return settings | own


def has_images(settings: Mapping[str, Any]) -> bool:
    """Return whether sandboxes of the backend in a pool's settings have images; otherwise they are existing machines.

    Raises:
        ConfigError: If there is no such backend.
    """
    from hermes_exec.backends.registry import config_type

    return "image" in config_type(str(settings.get("backend", "local"))).model_fields


def parse_options(options: list[str] | None) -> dict[str, Any]:
    """Return `NAME=VALUE` texts as a mapping; values are read as YAML (`8`, `true`, `[a, b]`, `{cpus: 2}`).

    Raises:
        ConfigError: If a text has no `=`, or a value is not YAML.
    """
    if not options:
        return {}
    import yaml

    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ConfigError(f"option {option!r} is not NAME=VALUE")
        try:
            parsed[name.strip().replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"option {option!r}: the value is not YAML: {' '.join(str(error).split())}") from error
    return parsed
