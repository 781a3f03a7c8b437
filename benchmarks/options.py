"""The sizes of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The sizes of the whole benchmark. The targets apply to the defaults."""

    rounds: int = 5
    slice_s: float = 0.4
    slots: int = 1000
    sandboxes: int = 32
    megabytes: int = 100
    state_megabytes: int = 300
