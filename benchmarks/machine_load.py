"""Other load on the machine while the benchmark pauses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

SAMPLE_S = 1.0
BUSY = 0.1


class LoadSample(NamedTuple):
    """The load before a part of the benchmark."""

    part: str
    load: float
    others: float

    def __str__(self) -> str:
        return f"{self.part} {self.load:.1f} and {self.others:.0%}"


def measure_load(part: str) -> LoadSample:
    """Measure the load average over a minute, and the processor share of other programs for a moment."""
    before = _ticks()
    time.sleep(SAMPLE_S)
    busy, total = (now - then for now, then in zip(_ticks(), before, strict=True))
    return LoadSample(part, os.getloadavg()[0], busy / max(1, total))


def describe_load(loads: list[LoadSample]) -> str:
    """Return a sentence about the load during the whole run."""
    samples = ", ".join(str(each) for each in loads)
    text = f"Load average, and processor time of other programs, in the second before each part: {samples}."
    most = max(each.others for each in loads)
    if most <= BUSY:
        return text
    return f"**The machine was busy with other work (up to {most:.0%}): do not trust the figures.** {text}"


def _ticks() -> tuple[int, int]:
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:  # not Linux
        return 0, 0
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
