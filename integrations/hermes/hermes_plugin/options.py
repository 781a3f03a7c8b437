"""The options of the backend: `terminal.backends.hermes_exec` in hermes-agent's config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_exec import ConfigError
from hermes_exec.blocking import SandboxPool
from hermes_plugin.workers import end_worker_in_order

BACKEND = "hermes_exec"
SECTION = f"terminal.backends.{BACKEND}"


class Options(BaseModel):
    """The options of this plugin. All others are options of `SandboxPool` (`backend`, `image`, `limits`, …)."""

    model_config = ConfigDict(extra="allow")

    pool: str | None = None
    """Configuration file of the pool; the other options here have precedence."""
    backend: str | None = None
    """Where sandboxes run. It has no default, so that nobody gets `local` without having named it."""
    image: str | None = None
    tools: bool = False
    """Whether the tools of hermes-exec replace its own tools."""
    sync_files: bool = True
    """Whether skills, credential files and caches are copied to `~/.hermes` of each slot."""

    def pool_config(self) -> dict[str, Any]:
        """Return the configuration of the pool.

        Raises:
            ConfigError: If it cannot be read, or names no backend.
        """
        config = dict(self.model_extra or {})
        if self.pool is not None:
            from hermes_exec.config import read_config

            config = {**read_config(self.pool), **config}
        config |= {name: value for name in ("backend", "image") if (value := getattr(self, name)) is not None}
        if not config.get("backend"):
            raise ConfigError(
                f"{SECTION}.backend is not set in config.yaml: set it to docker, singularity, nomad, modal or ssh, or "
                "to local for slots on this machine"
            )
        return config

    def open_pool(self) -> SandboxPool:
        """Return the open pool of this process.

        Raises:
            ConfigError: If an option is wrong.
            BackendUnavailable: If the backend cannot be used.
        """
        pool = SandboxPool.shared(self.pool_config()).open()
        end_worker_in_order()
        return pool


def read_options() -> Options:
    """Return the options in config.yaml.

    Raises:
        ConfigError: If an option is wrong.
    """
    # Each command of the model is preceded by a read: a copy of the whole configuration takes 0.7 ms.
    from hermes_cli.config import load_config_readonly

    section: Any = load_config_readonly()
    for name in SECTION.split("."):
        section = section.get(name) if isinstance(section, Mapping) else None
    try:
        return Options.model_validate(deepcopy(section or {}))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([SECTION, *map(str, first["loc"])])
        raise ConfigError(f"{place} in config.yaml: {first['msg']}") from None
