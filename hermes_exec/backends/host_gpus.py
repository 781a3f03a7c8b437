"""GPUs of an existing machine: their options, and how many slots they allow. The runner does the work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hermes_exec.config.backend import BackendConfig
from hermes_exec.errors import ConfigError, LaunchError

GPUName = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[\w-]+$")]


def _split(value: object) -> object:
    """Split names that are written as in `CUDA_VISIBLE_DEVICES`. Digits alone are a number of GPUs."""
    if isinstance(value, str) and value != "all" and not value.isdigit():
        return tuple(name.strip() for name in value.split(","))
    return value


class GPUConfig(BackendConfig):
    """Base of the configuration classes of backends whose slots may use the GPUs of an existing machine."""

    gpus: Annotated[
        Literal["all"] | Annotated[int, Field(ge=1)] | Annotated[tuple[GPUName, ...], Field(min_length=1)] | None,
        BeforeValidator(_split, json_schema_input_type=str | int | tuple[GPUName, ...] | None),
    ] = None
    """GPUs of the host that slots may use: `all`, the first so many, or a list of indexes (as of `nvidia-smi`) and
    UUIDs. All slots share them unless `gpus_per_slot` is set. None: no GPUs.
    """
    gpus_per_slot: Annotated[int, Field(ge=1)] | None = None
    """Give each slot so many GPUs of its own, of all GPUs or of those in `gpus`. By default, a host has as many slots
    as its GPUs allow.
    """

    @property
    def gpu_request(self) -> dict[str, object] | None:
        """The parameter `gpus` of `slot.create`; None for no GPUs."""
        if self.gpus is None and self.gpus_per_slot is None:
            return None
        request: dict[str, object] = {}
        if isinstance(self.gpus, int):
            request["count"] = self.gpus
        elif isinstance(self.gpus, tuple):
            request["names"] = [str(name) for name in self.gpus]
        if self.gpus_per_slot is not None:
            request["per_slot"] = self.gpus_per_slot
        return request


def gpus_command(request: Mapping[str, object]) -> list[str]:
    """Return the runner's arguments that count the slots for a request."""
    return ["gpus", "--request", json.dumps(request)]


def parse_gpu_slots(answer: object, where: str) -> int:
    """Return how many slots the GPUs of a host allow, from the answer to `gpus_command`.

    Raises:
        ConfigError: If the host has not these GPUs.
        LaunchError: If the answer is malformed.
    """
    fields: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if "problem" in fields:
        raise ConfigError(f"{where}: {fields['problem']}")
    if type(slots := fields.get("slots")) is not int or slots < 1:
        raise LaunchError(f"{where}: the runner answered {answer!r} to a question about GPUs")
    return slots


def divide_slots(available: int, sandboxes: int, slots: int | None, where: str) -> tuple[int, int]:
    """Divide the slots that the GPUs of a host allow among its sandboxes.

    Returns:
        The slots of a sandbox, and how many such sandboxes there can be at once.

    Raises:
        ConfigError: If the configured number of `slots` is too large.
    """
    if slots is not None and slots > available:
        raise ConfigError(
            f"{where}: a sandbox is to have {slots} slots, and with gpus_per_slot the GPUs there are enough for "
            f"{available}: set slots_per_sandbox={available}, or leave it out"
        )
    size = slots or max(1, available // sandboxes)
    return size, min(sandboxes, available // size)
