"""The Docker sandboxes that the suite runs over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import PoolFactory

SANDBOXES: dict[str, tuple[str, dict[str, Any]]] = {
    "busybox": ("busybox", {}),
    "debian": ("debian", {}),
    "distroless": ("distroless", {}),
    "user": ("debian", {"user": "tester"}),
    "read_only": ("debian", {"read_only": True}),
    "own_root": ("debian", {"slot_root": "own", "slots_per_sandbox": 4}),
}


def factory(sandbox: str, docker_image: Callable[[str], str]) -> PoolFactory:
    """Make pools of one kind of sandbox."""
    image, options = SANDBOXES[sandbox]
    return partial(SandboxPool, "docker", image=docker_image(image), **options)
