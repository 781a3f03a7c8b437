"""Preparing images before slots are requested: several at once, independent of each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import anyio

from hermes_exec.backends.capabilities import CanPrefetch
from hermes_exec.errors import ConfigError, ExecError, SlotClosed
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.launch import OnPull
from hermes_exec.pool.template import Template
from hermes_exec.redact import mask_raised_errors


async def prefetch(
    fleet: Fleet, images: Iterable[str], profile: str | None, on_pull: OnPull | None
) -> dict[str, ExecError | None]:
    """Prepare images; see `SandboxPool.prefetch`."""
    wanted = {image: fleet.templates.get(profile, image) for image in _validate_images(fleet, images)}
    results: dict[str, ExecError | None] = dict.fromkeys(wanted)
    room = anyio.CapacityLimiter(fleet.templates.backend.launches_at_once)

    async def fetch(image: str, template: Template) -> None:
        async with room:
            try:
                assert isinstance(template.backend, CanPrefetch)
                with mask_raised_errors(template.secrets):
                    await template.backend.prefetch(replace(template.spec(), on_progress=on_pull))
            except ExecError as error:
                results[image] = error

    with fleet.request(""), fleet.until_closed() as scope:
        async with anyio.create_task_group() as tasks:
            for image, template in wanted.items():
                tasks.start_soon(fetch, image, template)
    if scope.cancelled_caught:
        raise SlotClosed("the pool was closed")
    return results


def _validate_images(fleet: Fleet, images: Iterable[str]) -> list[str]:
    backend = fleet.templates.backends[0]
    if not isinstance(backend, CanPrefetch):
        raise ConfigError(
            f"backend {backend.name!r} has no images that can be fetched before its sandboxes are launched"
        )
    names: list[object] = [""] if isinstance(images, str) else list(images)
    valid = [name for name in names if name and isinstance(name, str)]
    if valid != names:
        raise ConfigError(f"images must be names of images, such as ['python:3.12-slim'], not {images!r}")
    return valid
