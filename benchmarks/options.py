"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The sizes of the whole benchmark; the targets are about the defaults."""

    rounds: int = 5
    slice_s: float = 0.4
    slots: int = 1000
    sandboxes: int = 32
    megabytes: int = 100
