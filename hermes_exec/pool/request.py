"""The request for a slot."""

from __future__ import annotations

from typing import NamedTuple


class SlotRequest(NamedTuple):
    """The arguments of `SandboxPool.acquire`."""

    profile: str | None = None
    image: str | None = None
    workdir: str | None = None
    timeout_s: float | None = None
    owner: str | None = None
