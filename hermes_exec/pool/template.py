"""One template: the settings that sandboxes share, and those of their slots."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from pydantic import SecretStr

from hermes_exec.backends.base import Backend, LaunchSpec, NoOwnRoot
from hermes_exec.backends.capabilities import HasGPUs
from hermes_exec.channel.encoding import WireBytes, to_wire
from hermes_exec.config import BackendConfig, Limits, PoolConfig
from hermes_exec.config.digest import digest
from hermes_exec.errors import ConfigError
from hermes_exec.pool.decisions import TemplateSize
from hermes_exec.redact import mask_raised_errors
from hermes_exec.results import Abilities, IsolationLevel

DEFAULT_FLOOR: IsolationLevel = "landlock"
"""The lowest isolation level that is accepted unless the configuration names one."""
DEFAULT_PIDS = 1024
"""Default limit of processes and threads of a slot, so that a fork bomb does not take the whole host."""
OF_SANDBOX = (
    "min_isolation",
    "network",
    "limits",
    "slot_limits",
    "best_effort_limits",
    "slot_root",
    "runner_memory_mb",
    "checkpoint_disk_mb",
)
"""Settings of a template besides its image, its `setup`, its sizes and times, and the options of its backend."""
SHARE_OF_SANDBOX = 8
"""A runner may use an eighth of its sandbox's memory."""


@dataclass(slots=True)
class OwnRoots:
    """Whether slots get private roots. If an engine refuses them, slots share the sandbox's root, unless they are
    required.
    """

    wanted: bool
    demanded: bool
    refused: str = ""
    warned: bool = False

    @property
    def enabled(self) -> bool:
        """Whether the next slot gets one."""
        return self.wanted and not self.refused

    def refuse(self, error: NoOwnRoot) -> None:
        """Stop using private roots. Raises the error if they are required."""
        if self.demanded:
            raise error
        self.refused = str(error)

    def warn(self, level: IsolationLevel) -> None:
        """Warn once, when the first slot is created, if private roots are unavailable."""
        if self.refused and not self.warned:
            self.warned = True
            message = f"slots share the root of their sandbox, isolated at the level {level!r}: {self.refused}"
            warnings.warn(f"{message}. slot_root='shared' accepts this", RuntimeWarning, stacklevel=2)


@dataclass(slots=True)
class Examination:
    """The abilities of a template's slots, once they are known."""

    abilities: Abilities | None = None
    is_requested: bool = False
    """Whether somebody has asked for them: the next launch finds them out."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while they are found out in a sandbox that was ready before."""


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """The settings of a slot that its sandbox does not depend on: holders of one sandbox may have different ones."""

    env: Mapping[str, str]
    secrets: Mapping[str, SecretStr]
    files: Mapping[str, bytes | str | Path]
    slot_setup: tuple[str, ...]
    """Commands to run each time a slot is acquired."""
    workdir: str | None

    @classmethod
    def of(cls, config: PoolConfig) -> SlotSettings:
        """Return those of a configuration."""
        return cls(config.env, config.secrets, config.files, _commands(config.slot_setup), config.workdir)

    def has_variables_of(self, other: SlotSettings | None) -> bool:
        """Return whether both have the same variables, secret ones included."""
        return other is not None and self.env == other.env and self.secrets == other.secrets


@dataclass(frozen=True, slots=True)
class Template:
    """The settings that sandboxes of one template share."""

    key: str
    profile: str | None
    image: str | None
    config: PoolConfig
    backend: Backend
    backend_config: BackendConfig = field(repr=False)
    secrets: list[str] = field(repr=False)
    """All secrets of the pool, for masking."""
    size: TemplateSize
    own_roots: OwnRoots
    slot_settings: SlotSettings
    """Those of its pool or named profile."""
    sandboxes: Mapping[int, int]
    """The maximum number of sandboxes at once, by their number of slots."""
    fitted: bool
    """Whether its sizes take GPUs into account: `fit_gpus` has returned it, or its slots have none."""
    examination: Examination = field(default_factory=Examination, repr=False)

    def digest(self) -> str:
        """Return a digest of the settings that sandboxes of the template share: equal templates share sandboxes."""
        config, setup = self.config, self.setup
        shared = {name: getattr(config, name) for name in OF_SANDBOX}
        # The commands of `setup` see the variables.
        variables = (config.env, config.secrets) if setup else ()
        size = replace(self.size, min_sandboxes=0)
        return digest(self.image, shared, setup, variables, size, self.backend_config)

    @property
    def exclusive(self) -> bool:
        """Whether a holder gets the whole sandbox."""
        return self.size.used_once

    @property
    def most_sandboxes(self) -> int:
        """The maximum number of sandboxes at once."""
        return sum(self.sandboxes.values())

    @property
    def most_slots(self) -> int:
        """The maximum number of slots at once."""
        return sum(slots * count for slots, count in self.sandboxes.items())

    @property
    def runner_memory_bytes(self) -> int:
        """The memory budget of a runner: `runner_memory_mb`, at most an eighth of the sandbox's memory."""
        budget, sandbox = self.config.runner_memory_mb << 20, self.config.limits.memory_mb
        return budget if sandbox is None else min(budget, (sandbox << 20) // SHARE_OF_SANDBOX)

    @property
    def checkpoint_limit(self) -> dict[str, int]:
        """The parameter of a checkpoint for the bytes that the layers of a sandbox may have; empty without a limit."""
        limit = self.config.checkpoint_disk_mb
        return {} if limit is None else {"limit": limit << 20}

    @property
    def setup(self) -> tuple[str, ...]:
        """Commands to run once per sandbox."""
        return _commands(self.config.setup)

    async def check(self) -> None:
        """Check with the backend that it can launch such sandboxes. Raises as `Backend.check`."""
        try:
            with mask_raised_errors(self.secrets):
                await self.backend.check(self.spec())
        except NoOwnRoot as error:
            self.own_roots.refuse(error)

    async def fit_gpus(self) -> Template:
        """Return the template with as many slots as the GPUs allow, if each slot has its own. Call `check` before.

        Raises:
            ConfigError: If there are too few GPUs for the configured sizes.
        """
        backend, size = self.backend, self.size
        if self.fitted or not isinstance(backend, HasGPUs):
            return self
        sizes = await backend.gpu_sizes(self.most_sandboxes, self.config.slots_per_sandbox)
        if sizes is None:
            return replace(self, fitted=True)
        count = sum(sizes.values())
        if size.min_sandboxes > count:
            message = f"the GPUs are enough for {count} sandboxes, and min_sandboxes={size.min_sandboxes}"
            raise ConfigError(f"{message}: set a smaller min_sandboxes or slots_per_sandbox")
        size = replace(size, slots_per_sandbox=max(sizes), largest=max(sizes), max_sandboxes=count)
        return replace(self, size=size, sandboxes=sizes, fitted=True)

    def spec(self) -> LaunchSpec:
        """Return the LaunchSpec for the backend."""
        config = self.config
        return LaunchSpec(
            image=self.image,
            limits=self._sandbox_limits(),
            best_effort_limits=config.best_effort_limits,
            default_limits=frozenset() if "pids" in config.limits.model_fields_set else frozenset({"pids"}),
            network=config.network,
            slots=self.size.slots_per_sandbox,
            exclusive=self.exclusive,
            own_roots=self.own_roots.enabled,
            min_isolation=config.min_isolation or "none",
            lease_s=config.lease_s,
            lifetime_s=config.max_lifetime_s,
            pull_timeout_s=config.pull_timeout_s,
        )

    def _slot_limits(self) -> Limits:
        """Return the limits of a slot, with the default for processes unless it was set."""
        limits = self.config.slot_limits
        return limits if "pids" in limits.model_fields_set else limits.model_copy(update={"pids": DEFAULT_PIDS})

    def _sandbox_limits(self) -> Limits:
        """Return the limits of a sandbox. A container or VM may have as many processes as all its slots together."""
        limits, each = self.config.limits, self._slot_limits().pids
        if "pids" in limits.model_fields_set or each is None or not self.backend.can_be_exclusive:
            return limits
        return limits.model_copy(update={"pids": each * self.size.slots_per_sandbox})

    def slot_params(self, slot: str, user: str | None, settings: SlotSettings) -> dict[str, object]:
        """Return the params of `slot.create`. They contain the secrets: never log them."""
        config = self.config
        env: dict[str, WireBytes] = {name: to_wire(value, name) for name, value in settings.env.items()}
        env |= {name: to_wire(value.get_secret_value(), name) for name, value in settings.secrets.items()}
        return {
            "slot": slot,
            "level": "exclusive" if self.exclusive else "auto",
            "floor": config.min_isolation or DEFAULT_FLOOR,
            "network": config.network,
            # The engine enforces the limits of an exclusive sandbox.
            "limits": {
                **config.limits.per_process(),
                **(config.slot_limits if self.exclusive else self._slot_limits()).to_dict(),
            },
            "best_effort_limits": config.best_effort_limits,
            "default_limits": [] if "pids" in config.slot_limits.model_fields_set else ["pids"],
            "env": env,
            "readonly_paths": [to_wire(path, "readonly_paths") for path in self.backend.readonly_paths],
            "gpus": gpus_of(self.backend),
            "private_root": self.backend.private_root,
            "own_root": self.own_roots.enabled,
            "workspace": to_wire("/workspace", "workspace") if self.exclusive or self.own_roots.enabled else "",
            "user": user if self.exclusive or self.own_roots.enabled else None,
        }


def gpus_of(backend: Backend) -> Mapping[str, object] | None:
    """Return the GPUs of a machine that slots of a backend use; None for none."""
    return backend.gpus if isinstance(backend, HasGPUs) else None


def _commands(commands: str | tuple[str, ...]) -> tuple[str, ...]:
    return (commands,) if isinstance(commands, str) else tuple(commands)
