"""Templates of sandboxes: the settings of the pool or a profile, some with the image of a single request."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_exec.backends.base import Backend, LaunchSpec, NoOwnRoot
from hermes_exec.backends.registry import make_backend
from hermes_exec.channel.encoding import WireBytes, to_wire
from hermes_exec.config import BackendConfig, Limits, PoolConfig, ProfileConfig, nearest, with_profile
from hermes_exec.config.model import check_text
from hermes_exec.config.pool import check_workdir
from hermes_exec.errors import ConfigError
from hermes_exec.pool.plan import TemplateSize
from hermes_exec.redact import mask_raised_errors, secret_values
from hermes_exec.results import IsolationLevel

DEFAULT_FLOOR: IsolationLevel = "landlock"
"""The lowest isolation level that is accepted unless the configuration names one."""
DEFAULT_PIDS = 1024
"""Default limit of processes and threads of a slot, so that a fork bomb does not take the whole host."""
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


@dataclass(frozen=True, slots=True)
class Template:
    """The settings that sandboxes of one template share."""

    key: str
    profile: str | None
    image: str | None
    config: PoolConfig
    backend: Backend
    secrets: list[str] = field(repr=False)
    size: TemplateSize
    own_roots: OwnRoots
    sandboxes: Mapping[int, int]
    """The maximum number of sandboxes at once, by their number of slots."""

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
    def setup(self) -> tuple[str, ...]:
        """Commands to run once per sandbox."""
        return _commands(self.config.setup)

    @property
    def slot_setup(self) -> tuple[str, ...]:
        """Commands to run each time a slot is acquired."""
        return _commands(self.config.slot_setup)

    async def check(self) -> None:
        """Check with the backend that it can launch such sandboxes. Raises as `Backend.check`."""
        try:
            with mask_raised_errors(self.secrets):
                await self.backend.check(self.spec())
        except NoOwnRoot as error:
            self.own_roots.refuse(error)

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

    def slot_params(self, slot: str, user: str | None) -> dict[str, object]:
        """Return the params of `slot.create`. They contain the secrets: never log them."""
        config = self.config
        env: dict[str, WireBytes] = {name: to_wire(value, name) for name, value in config.env.items()}
        env |= {name: to_wire(value.get_secret_value(), name) for name, value in config.secrets.items()}
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
            "private_root": self.backend.private_root,
            "own_root": self.own_roots.enabled,
            "workspace": to_wire("/workspace", "workspace") if self.exclusive or self.own_roots.enabled else "",
            "user": user if self.exclusive or self.own_roots.enabled else None,
        }


class Templates:
    """The templates of a pool, by profile and image. Its creation validates everything that needs no I/O."""

    def __init__(self, config: PoolConfig, backend: BackendConfig) -> None:
        self.config = config
        self.backend = backend
        self.max_sandboxes = config.max_sandboxes or backend.default_max_sandboxes
        self._slots = config.slots_per_sandbox or backend.default_slots
        self._has_images = "image" in type(backend).model_fields
        self._templates: dict[str, Template] = {}
        self._backends: dict[str, tuple[BackendConfig, Backend]] = {}
        if config.min_sandboxes > self.max_sandboxes:
            raise ConfigError(
                f"min_sandboxes {config.min_sandboxes} is above max_sandboxes, which is {self.max_sandboxes} here"
            )
        imageless = self._has_images and self._image(config) is None
        if not imageless or not config.profiles:
            self.get(None, None)
        for name in config.profiles:
            self.get(name, None)
        least = sum(template.size.min_sandboxes for template in self._templates.values())
        if least > self.max_sandboxes:
            message = (
                f"the minimums of pool and profiles ask for {least} sandboxes, max_sandboxes is {self.max_sandboxes}"
            )
            raise ConfigError(message)

    @property
    def all(self) -> list[Template]:
        """The templates that were used so far."""
        return list(self._templates.values())

    @property
    def backends(self) -> list[Backend]:
        """Every backend object in use, once."""
        return [backend for _, backend in self._backends.values()]

    @property
    def backend_configs(self) -> list[BackendConfig]:
        """The configuration of each backend object."""
        return [config for config, _ in self._backends.values()]

    def sizes(self) -> Mapping[str, TemplateSize]:
        """Return the sizes of each template, for the planner."""
        return {key: template.size for key, template in self._templates.items()}

    def by_key(self, key: str) -> Template:
        """Return a template by its key."""
        return self._templates[key]

    def get(self, profile: str | None, image: str | None) -> Template:
        """Return the template for a request.

        Raises:
            ConfigError: If there is no such profile, or the backend cannot use that image.
        """
        key = "the default template" if profile is None else f"profile {profile!r}"
        key += f" with image {image!r}" if image else ""
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._make(key, profile, image)
        return template

    def _make(self, key: str, profile: str | None, image: str | None) -> Template:
        config, options, own = self.config, {}, ProfileConfig()
        if profile is not None:
            values = with_profile(dict(config), profile)
            options = values.pop("backend_options")
            config, own = config.model_copy(update=values), config.profiles[profile]
        chosen = image or self._image(config)
        name = type(self.backend).backend
        if chosen is None and self._has_images:
            where = f"profile {profile!r}" if profile else "the pool"
            raise ConfigError(
                f"backend {name!r} needs an image and {where} names none: image='python:3.12-slim' (--image)"
            )
        if chosen is not None and not self._has_images:
            raise ConfigError(f"backend {name!r} has no images, and image={chosen!r} was given")
        try:
            check_text(chosen)
        except ValueError as error:
            raise ConfigError(f"image: {error}") from None
        slots = config.slots_per_sandbox or self._slots
        backend_config, backend = self._backend(options)
        if config.min_isolation == "exclusive" and not (slots == 1 and backend.can_be_exclusive):
            why = (
                "slots_per_sandbox=1" if backend.can_be_exclusive else "a backend whose sandboxes are containers or VMs"
            )
            raise ConfigError(f"min_isolation='exclusive' needs {why}")
        if config.slot_root == "own" and not backend.can_be_exclusive:
            message = f"slot_root='own' needs sandboxes with an image, and backend {name!r} uses existing machines"
            raise ConfigError(message)
        self.check_workdir(config.workdir)
        _check_files(config)
        most = own.max_sandboxes if profile else None
        sandboxes = backend_config.sizes(min(most or self.max_sandboxes, self.max_sandboxes), slots)
        size = TemplateSize(
            slots_per_sandbox=slots,
            largest=max(sandboxes),
            spread=min(len(backend_config.each_host()) or 1, sum(sandboxes.values())),
            min_sandboxes=self._least(profile, image, own),
            max_sandboxes=most,
            idle_timeout_s=config.idle_timeout_s,
            max_lifetime_s=config.max_lifetime_s,
            used_once=slots == 1 and backend.can_be_exclusive and config.slot_root != "own",
        )
        _check_disk(config, size, in_memory=backend.can_be_exclusive)
        if most is not None and size.min_sandboxes > most:
            raise ConfigError(f"profile {profile!r}: min_sandboxes {size.min_sandboxes} is above max_sandboxes {most}")
        demanded = config.slot_root == "own"
        by_itself = config.slot_root is None and slots > 1 and backend.can_be_exclusive
        own_roots = OwnRoots(demanded or by_itself, demanded)
        secrets = secret_values(config, backend_config)
        return Template(key, profile, chosen, config, backend, secrets, size, own_roots, sandboxes)

    def _image(self, config: PoolConfig) -> str | None:
        own = getattr(self.backend, "image", None)
        return config.image or (own if isinstance(own, str) else None)

    def _least(self, profile: str | None, image: str | None, own: ProfileConfig) -> int:
        if image is not None:
            return 0
        return self.config.min_sandboxes if profile is None else own.min_sandboxes or 0

    def _backend(self, options: Mapping[str, Any]) -> tuple[BackendConfig, Backend]:
        key = repr(sorted(options.items(), key=lambda item: item[0]))
        if key not in self._backends:
            config = self.backend
            if options:
                config_class = type(config)
                unknown = [name for name in options if name not in config_class.model_fields]
                if unknown:
                    hint = nearest(unknown[0], config_class.model_fields)
                    raise ConfigError(f"there is no option {unknown[0]!r} for backend {config_class.backend!r}; {hint}")
                config = config.with_options(dict(options))
            self._backends[key] = config, make_backend(config)
        return self._backends[key]

    def check_workdir(self, workdir: str | None) -> None:
        """Refuse a directory in which calls cannot start.

        Raises:
            ConfigError: If it is neither an absolute path nor `image` (for backends with images).
        """
        try:
            if workdir is not None:
                check_workdir(workdir)
        except ValueError as error:
            raise ConfigError(f"workdir: {error}") from None
        if workdir == "image" and not self._has_images:
            message = f"workdir='image' needs an image, and backend {type(self.backend).backend!r} has none"
            raise ConfigError(f"{message}: give an absolute path")

    @property
    def slots_most(self) -> int:
        """The maximum number of slots at once, of the template that has the most."""
        most = (template.most_slots for template in self.all)
        return max(most, default=self.max_sandboxes * self._slots)

    def check_room(self, template: Template, slots: int) -> None:
        """Refuse more slots than there can ever be at once.

        Raises:
            ConfigError: If there are too many; the message names settings that make room for them.
        """
        if slots > (most := template.most_slots):
            each, sandboxes = " or ".join(map(str, sorted(template.sandboxes))), template.most_sandboxes
            wanted = f"max_sandboxes={-(-slots // min(template.sandboxes))}"
            own = set(template.sandboxes) != {template.size.slots_per_sandbox}
            larger = "larger sandboxes" if own else f"slots_per_sandbox={-(-slots // sandboxes)}"
            raise ConfigError(
                f"{slots} slots were requested at once, and there can be at most {most} of {template.key} "
                f"(slots in a sandbox: {each}, sandboxes: {sandboxes}): set {wanted} or {larger} "
                f"(on the command line: -o {wanted})"
            )


def _commands(commands: str | tuple[str, ...]) -> tuple[str, ...]:
    return (commands,) if isinstance(commands, str) else tuple(commands)


def _check_disk(config: PoolConfig, size: TemplateSize, *, in_memory: bool) -> None:
    """Raise ConfigError for a limit of the disk that slots cannot have. `in_memory`: the sandboxes are containers or
    VMs, in which the files of slots with such a limit are in memory.
    """
    disk_mb, memory_mb, slots = config.slot_limits.disk_mb, config.limits.memory_mb, size.slots_per_sandbox
    if disk_mb is None or config.best_effort_limits:
        return
    if size.used_once:
        raise ConfigError(
            "slot_limits.disk_mb cannot be enforced on an exclusive sandbox: set slots_per_sandbox=2 or more, or"
            " best_effort_limits=True"
        )
    if in_memory and memory_mb is not None and slots * disk_mb >= memory_mb:
        raise ConfigError(
            f"slot_limits.disk_mb={disk_mb} for {slots} slots does not fit into limits.memory_mb={memory_mb}, because"
            " these files are in memory: lower disk_mb, or raise memory_mb above the sum"
        )


def _check_files(config: PoolConfig) -> None:
    for path, source in config.files.items():
        if not path or "\0" in path:
            raise ConfigError(f"files: {path!r} is not a path in the slot")
        if isinstance(source, str | Path) and not os.path.exists(source):
            raise ConfigError(
                f"files: there is no local file {str(source)!r} to put at {path!r}; content is given as bytes"
            )
