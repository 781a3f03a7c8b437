"""The profile of a slot for a sandbox that NeMo Gym requests."""

from __future__ import annotations

from typing import Annotated, Any

from nemo_gym.sandbox.providers.base import SandboxResources, SandboxSpec
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from hermes_exec import ConfigError, Limits, ProfileConfig, SandboxPool, config_type


async def slot_profile(pool: SandboxPool, spec: SandboxSpec) -> ProfileConfig:
    """Return the profile for a request. `provider_options` are fields of a profile. The request overrides them.

    Resources are limits of the slot. Where slots cannot have them, and with GPUs, it gets a sandbox of its own.

    Raises:
        ConfigError: If an option is wrong, or is not supported.
    """
    if spec.entrypoint:
        raise ConfigError("entrypoint is not supported: start the program by `exec`, or choose another image")
    defaults = ProfileConfig(**spec.provider_options)
    image = spec.image or defaults.image or pool.config.image
    workdir = spec.workdir or defaults.workdir or pool.config.workdir or ("image" if image else None)
    options = {**spec.provider_options, "image": image, "workdir": workdir, "env": {**(defaults.env or {}), **spec.env}}
    options |= _gpu_options(pool, defaults, spec.resources)
    profile = ProfileConfig(**options)
    limits = {"cpus": spec.resources.cpu, "memory_mb": spec.resources.memory_mib}
    limits = {name: value for name, value in limits.items() if value is not None}
    if not limits:
        return profile
    slot_limits = _merge_limits(pool.config.slot_limits, profile.slot_limits, limits)
    in_slot = ProfileConfig(**options | {"slot_limits": slot_limits})
    if limits.keys() <= await _slot_limits(pool, in_slot):
        return in_slot
    sandbox_limits = _merge_limits(pool.config.limits, profile.limits, limits)
    return ProfileConfig(**options | {"limits": sandbox_limits, "slots_per_sandbox": 1})


def _gpu_options(pool: SandboxPool, defaults: ProfileConfig, resources: SandboxResources) -> dict[str, Any]:
    """Return the options for GPUs that no other slot has."""
    if not resources.gpu:
        return {}
    gpus = f"{resources.gpu_type}:{resources.gpu}" if resources.gpu_type else resources.gpu
    backend = config_type(pool.config.backend)
    per_slot = "gpus_per_slot" in backend.model_fields
    name = "gpus_per_slot" if per_slot else "gpus"
    if not _accepts(backend.model_fields.get(name), gpus):
        raise ConfigError(
            f"resources: the backend cannot give {gpus!r} to a sandbox: leave gpu_type and gpu out, and set the option "
            f"{name!r} of the backend by provider_options={{'backend_options': ...}}"
        )
    chosen = {"backend_options": {**defaults.backend_options, name: gpus}}
    return chosen if per_slot else {**chosen, "slots_per_sandbox": 1}


def _accepts(field: FieldInfo | None, value: object) -> bool:
    if field is None:
        return False
    annotation: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


async def _slot_limits(pool: SandboxPool, profile: ProfileConfig) -> frozenset[str]:
    """Return the names of the limits that a slot of this profile can have besides others in its sandbox."""
    backend = config_type(pool.config.backend)
    slots = profile.slots_per_sandbox or pool.config.slots_per_sandbox or backend.default_slots
    if slots == 1 and "image" in backend.model_fields:
        return frozenset()  # its only slot has the limits of the sandbox
    abilities = await pool.abilities(profile.model_copy(update={"best_effort_limits": True}))
    return abilities.slot_limits


def _merge_limits(pool: Limits, profile: Limits | None, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of a profile, or else of its pool, with the wanted ones on top."""
    return {**(pool if profile is None else profile).to_dict(), **wanted}
