"""Whether what was held at the end is what was held at the beginning."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

SLACK = {
    "MiB": 24.0,
    "zombies": 3.0,
    "directories": 100.0,
    "children": 5.0,
    "containers": 0.5,
    "runners": 0.5,
    "cgroups": 4.0,
}
"""By how much a gauge may be higher by chance, besides a tenth; by words in its name."""
OTHER_SLACK = 20.0
HOSTILE_SLACK = {"driver MiB": 16.0, "runner MiB": 16.0, "runner descriptors": 128.0}
"""Also for each hostile tenant: what the driver got of floods, what is under way in a runner, files of ended
processes."""
GROWTH = 1.1
SETTLED = 0.2
"""The part of the time after which all caches are full."""
LATENCY_GROWTH = 1.5


@dataclass(frozen=True)
class Row:
    """One gauge: its median at the beginning and at the end, and whether that is as it should be."""

    name: str
    first: float
    last: float
    limit: float

    @property
    def flat(self) -> bool:
        """Whether it has not grown."""
        return self.last <= self.limit


def rows(samples: list[dict[str, float]], hostile: int = 0) -> list[Row]:
    """One for each gauge, beside so many hostile tenants."""
    end = samples[-1]["s"]
    first = [s for s in samples if SETTLED * end <= s["s"] < 2 * SETTLED * end]
    last = [s for s in samples if s["s"] >= (1 - SETTLED) * end]
    found = []
    for name in samples[0]:
        if name == "s":
            continue
        before, after = median(s[name] for s in first), median(s[name] for s in last)
        slack = next((slack for word, slack in SLACK.items() if word in name), OTHER_SLACK)
        growth = 1 if slack < 1 else GROWTH
        found.append(Row(name, before, after, before * growth + slack + hostile * HOSTILE_SLACK.get(name, 0)))
    return found


def latencies(probes: list[tuple[float, float]], window_s: float = 60.0) -> tuple[float, float]:
    """The 99th percentile of a no-op in the first and in the last minute, in ms."""
    end = max(at for at, _ in probes)
    first = sorted(took for at, took in probes if at < window_s)
    last = sorted(took for at, took in probes if at > end - window_s)
    return tuple(1000 * values[int(len(values) * 0.99)] for values in (first, last))  # type: ignore[return-value]
