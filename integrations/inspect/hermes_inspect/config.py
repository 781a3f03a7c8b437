"""The configurations of a sandbox in inspect_ai, and the pool and slot that each of them asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inspect_ai.util import (
    ComposeConfig,
    SandboxEnvironmentConfigType,
    is_compose_yaml,
    is_dockerfile,
    parse_compose_yaml,
)
from pydantic import BaseModel, ConfigDict
from yaml import YAMLError

from hermes_exec import ConfigError, ProfileConfig, SandboxPool
from hermes_inspect.compose import read_service

COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
CONFIG_FILES = ("pool.yaml", *COMPOSE_FILES, "Dockerfile")
"""The files that inspect_ai looks for beside a task, in this order, if the sandbox names none."""


OF_SLOT = frozenset({
    "image", "min_isolation", "network", "limits", "slot_limits", "best_effort_limits", "env", "secrets", "files",
    "slot_root", "workdir", "setup", "slot_setup",
})  # fmt: skip
"""Options in which the slots of one pool may differ."""


class HermesConfig(BaseModel):
    """The sandbox of a task or sample: `SandboxEnvironmentSpec("hermes", HermesConfig(backend="docker", image="a"))`.

    All values but `config` are options of `SandboxPool`. Samples with equal values share a pool.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    config: str | None = None
    """Configuration file of the pool. None: the environment (`HERMES_EXEC_*`)."""

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))


@dataclass(frozen=True)
class PoolRequest:
    """A pool, by its configuration file (None: the environment) and further options, and the profile of a slot."""

    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    profile: ProfileConfig | None = None

    @classmethod
    def of(cls, source: str | None, values: Mapping[str, Any]) -> PoolRequest:
        """Return the request for these options of `SandboxPool`."""
        slot = {name: value for name, value in values.items() if name in OF_SLOT}
        options = {name: value for name, value in values.items() if name not in OF_SLOT}
        return cls(source, options, ProfileConfig(**slot) if slot else None)

    def shared_pool(self) -> SandboxPool:
        """Return the pool, which all samples of this process share."""
        return SandboxPool.shared(self.source, **self.options)


def read_config(config: SandboxEnvironmentConfigType | None) -> PoolRequest:
    """Return what a configuration asks for.

    Raises:
        ConfigError: If there is no such file, or if it has values that slots cannot have.
    """
    if config is None:
        return PoolRequest()
    if isinstance(config, HermesConfig):
        return PoolRequest.of(config.config, config.model_extra or {})
    if isinstance(config, ComposeConfig):
        return PoolRequest.of(None, read_service(config, Path.cwd()))
    if not isinstance(config, str):
        raise ConfigError(f"the sandbox 'hermes' takes a file or a HermesConfig, not {type(config).__name__}")
    if not Path(config).is_file():
        raise ConfigError(
            f"there is no file {config!r}: name a configuration of a pool, a Dockerfile or a compose file"
        )
    directory = Path(config).absolute().parent
    if is_compose_yaml(config):
        try:
            return PoolRequest.of(None, read_service(parse_compose_yaml(config), directory))
        except ConfigError as error:
            raise ConfigError(f"{config}: {error}") from None
        except (ValueError, YAMLError) as error:
            raise ConfigError(f"{config} is no compose file: {error}") from None
    if is_dockerfile(config):
        if Path(config).name != "Dockerfile":
            raise ConfigError(
                f"{config}: only a file with the name Dockerfile can be built; give it a directory of its own"
            )
        return PoolRequest.of(None, {"backend": "docker", "image": f"dockerfile:{directory}", "workdir": "image"})
    return PoolRequest(config)
