"""The request for a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hermes_exec.config import ProfileConfig
    from hermes_exec.slot.checkpoint import Checkpoint


class SlotRequest(NamedTuple):
    """The arguments of `SandboxPool.acquire`."""

    profile: str | ProfileConfig | None = None
    image: str | None = None
    workdir: str | None = None
    timeout_s: float | None = None
    owner: str | None = None
    from_: Checkpoint | None = None
