"""Templates of sandboxes: the settings of the pool or a profile, some with the image of a single request."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from hermes_exec.backends.base import Backend
from hermes_exec.backends.registry import make_backend
from hermes_exec.config import BackendConfig, PoolConfig, ProfileConfig, merge_options, nearest, with_profile
from hermes_exec.config.digest import digest
from hermes_exec.config.model import check_text
from hermes_exec.config.pool import check_workdir
from hermes_exec.errors import ConfigError
from hermes_exec.pool.decisions import TemplateSize
from hermes_exec.pool.template import OwnRoots, SlotSettings, Template, gpus_of
from hermes_exec.redact import secret_values

UNUSED_TEMPLATES = 64
"""How many unused templates of images and inline profiles are remembered, with the history of their launches."""
INLINE_SECRETS = 1000
"""Secrets of so many inline profiles are masked at one time, if each has others."""


class Templates:
    """The templates of a pool, by profile and image. Its creation validates everything that needs no I/O."""

    def __init__(self, config: PoolConfig, backend: BackendConfig, *, needs_image: bool = True) -> None:
        self.config = config
        self.backend = backend
        self.max_sandboxes = config.max_sandboxes or backend.default_max_sandboxes
        self._slots = config.slots_per_sandbox or backend.default_slots
        self._has_images = "image" in type(backend).model_fields
        self.secrets: list[str] = []
        """Every secret of the pool and of inline profiles, for masking. The list changes in place."""
        self.is_used: Callable[[str], bool] = lambda _key: False
        """Whether a template has sandboxes or requests. The fleet sets it."""
        self.on_forget: Callable[[list[str], list[Backend]], None] = lambda _keys, _backends: None
        """Called with the templates that were forgotten, and the backends that only they used."""
        self._templates: dict[str, Template] = {}
        self._keys: dict[str, str] = {}
        """The keys of the templates by their digest."""
        self._passing: dict[str, str] = {}
        """The digests of templates that may be forgotten, by their key, the longest unused ones first."""
        self._inline_secrets: deque[list[str]] = deque(maxlen=INLINE_SECRETS)
        self._backends: dict[str, tuple[BackendConfig, Backend]] = {}
        if config.min_sandboxes > self.max_sandboxes:
            raise ConfigError(
                f"min_sandboxes {config.min_sandboxes} is above max_sandboxes, which is {self.max_sandboxes} here"
            )
        imageless = self._has_images and self._image(config) is None
        if not imageless or (needs_image and not config.profiles):
            self.get(None, None)
        for name in config.profiles:
            self.get(name, None)
        least = sum(template.size.min_sandboxes for template in self._templates.values())
        if least > self.max_sandboxes:
            message = (
                f"the minimums of pool and profiles ask for {least} sandboxes, max_sandboxes is {self.max_sandboxes}"
            )
            raise ConfigError(message)
        self._own_secrets = secret_values(config, *self.backend_configs)
        self.secrets[:] = self._own_secrets
        self._own_backends = set(self._backends)

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

    async def check(self) -> None:
        """Check with the backends that they can launch all templates. Raises as `Backend.check`."""
        for template in self.all:
            await template.check()
            self._templates[template.key] = await template.fit_gpus()

    async def fit_gpus(self, profile: str | ProfileConfig | None, image: str | None) -> None:
        """Ask the hosts how many slots their GPUs allow, if that is not known for these templates yet, as after a new
        inline profile. Raises as `Backend.check`.
        """
        template = self.get(profile, image)
        if not template.fitted:
            await template.check()
            fitted = await template.fit_gpus()
            if self.get(profile, image) is template:
                self._templates[template.key] = fitted

    def sizes(self) -> Mapping[str, TemplateSize]:
        """Return the sizes of each template, for the planner."""
        return {key: template.size for key, template in self._templates.items()}

    def by_key(self, key: str) -> Template:
        """Return a template by its key."""
        return self._templates[key]

    def get(self, profile: str | ProfileConfig | None, image: str | None) -> Template:
        """Return the template for a request. Raises as `select`."""
        return self.select(profile, image)[0]

    def select(self, profile: str | ProfileConfig | None, image: str | None) -> tuple[Template, SlotSettings]:
        """Return the template for a request, and the settings of its slots.

        Raises:
            ConfigError: If there is no such profile, a setting of it is wrong, or the backend cannot use that image.
        """
        if isinstance(profile, ProfileConfig):
            return self._select_inline(profile, image)
        if profile is not None and not isinstance(profile, str):
            raise ConfigError(f"profile must be a name or a ProfileConfig, not {type(profile).__name__}")
        key = "the default template" if profile is None else f"profile {profile!r}"
        key += f" with image {image!r}" if image else ""
        template = self._templates.get(key)
        if template is None:
            config, options, own = self.config, {}, ProfileConfig()
            if profile is not None:
                values = with_profile(dict(config), profile)
                options = values.pop("backend_options")
                config, own = config.model_copy(update=values), config.profiles[profile]
            least = 0 if image else config.min_sandboxes if profile is None else own.min_sandboxes or 0
            template = self._make(key, profile, image, config, options, own, least)
            if image:
                return self._adopt(template), template.slot_settings
            self._templates[key] = template
            self._keys.setdefault(template.digest(), key)
        elif image:
            self._passing[key] = self._passing.pop(key)
        return template, template.slot_settings

    def _select_inline(self, profile: ProfileConfig, image: str | None) -> tuple[Template, SlotSettings]:
        if profile.min_sandboxes:
            message = "min_sandboxes: the pool keeps no sandboxes for an inline profile"
            raise ConfigError(f"{message}; name the profile in `profiles`, or call `pool.prewarm(n, profile=…)`")
        own = {name: value for name, value in dict(profile).items() if value is not None}
        values = merge_options(dict(self.config), own)
        options = values.pop("backend_options")
        config = self.config.model_copy(update=values)
        self.check_workdir(config.workdir)
        _check_files(config)
        common = config.model_copy(update={name: getattr(self.config, name) for name in SlotSettings.__slots__})
        template = self._adopt(self._make("", None, image, common, options, profile, 0))
        self._mask(secret_values(profile, template.backend_config))
        return template, SlotSettings.of(config)

    def _adopt(self, new: Template) -> Template:
        """Return the template that is equal to a new one, or the new one, until it is forgotten."""
        new_digest = new.digest()
        key = self._keys.get(new_digest)
        if key is None:
            key = self._keys[new_digest] = new.key or f"inline profile {new_digest[:12]}"
            self._templates[key] = replace(new, key=key)
            self._passing[key] = new_digest
        elif key in self._passing:
            self._passing[key] = self._passing.pop(key)
        template = self._templates[key]
        self._forget_unused()
        return template

    def _forget_unused(self) -> None:
        """Forget templates that nobody uses, the longest unused ones first, except the last ones."""
        forgotten = []
        for key in list(self._passing)[: -UNUSED_TEMPLATES or None]:
            if not self.is_used(key):
                forgotten.append(key)
                del self._keys[self._passing.pop(key)], self._templates[key]
        if forgotten:
            used = {id(template.backend) for template in self._templates.values()}
            options = [key for key, (_, backend) in self._backends.items() if id(backend) not in used]
            unused = [self._backends.pop(key)[1] for key in options if key not in self._own_backends]
            self.on_forget(forgotten, unused)

    def _mask(self, secrets: list[str]) -> None:
        """Mask more secrets, besides those of the pool and of the last inline profiles that had others."""
        if not set(secrets) <= set(self.secrets):
            self._inline_secrets.append(secrets)
            self.secrets[:] = sorted({*self._own_secrets, *chain(*self._inline_secrets)}, key=len, reverse=True)

    def _make(
        self,
        key: str,
        profile: str | None,
        image: str | None,
        config: PoolConfig,
        options: Mapping[str, Any],
        own: ProfileConfig,
        least: int,
    ) -> Template:
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
        most = own.max_sandboxes
        sandboxes = backend_config.sizes(min(most or self.max_sandboxes, self.max_sandboxes), slots)
        size = TemplateSize(
            slots_per_sandbox=slots,
            largest=max(sandboxes),
            spread=min(len(backend_config.each_host()) or 1, sum(sandboxes.values())),
            min_sandboxes=least,
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
        return Template(
            key=key,
            profile=profile,
            image=chosen,
            config=config,
            backend=backend,
            backend_config=backend_config,
            secrets=self.secrets,
            size=size,
            own_roots=own_roots,
            slot_settings=SlotSettings.of(config),
            sandboxes=sandboxes,
            fitted=gpus_of(backend) is None,
        )

    def _image(self, config: PoolConfig) -> str | None:
        own = getattr(self.backend, "image", None)
        return config.image or (own if isinstance(own, str) else None)

    def _backend(self, options: Mapping[str, Any]) -> tuple[BackendConfig, Backend]:
        key = digest(options)
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
            remedy = f"set {wanted} or {larger} (on the command line: -o {wanted})"
            if "per_slot" in (gpus_of(template.backend) or {}):
                remedy = "each slot has its own GPUs: request fewer slots or set a smaller gpus_per_slot"
            raise ConfigError(
                f"{slots} slots were requested at once, and there can be at most {most} of {template.key} "
                f"(slots in a sandbox: {each}, sandboxes: {sandboxes}): {remedy}"
            )


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
