"""What counts as a difference: verdicts on one test outside of a slot and in it, over all times that it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.packages.report import Report

ABSENT = "not there"


class Named(NamedTuple):
    """A difference that is known, and why it is none of ours. One that `varies` may go either way in any place."""

    package: str
    test: str
    why: str
    pairs: tuple[str, ...] = ()
    varies: bool = False


@dataclass
class Seen:
    """How often a test had which verdict on either side, and what was said when it did not pass."""

    outside: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, outside: Report, inside: Report, test: str) -> None:
        """Count another run on either side."""
        for side, counts, report in (("outside", self.outside, outside), ("inside", self.inside, inside)):
            case = report.get(test)
            counts[case.verdict if case else ABSENT] += 1
            if case and case.reason:
                self.reasons[side] = case.reason

    @property
    def varies_outside(self) -> bool:
        """Whether everything that came out in the slot came out outside as well."""
        return self.inside.keys() <= self.outside.keys()

    def __str__(self) -> str:
        """Counts on either side, and reasons."""
        sides = []
        for side, counts in (("outside", self.outside), ("inside", self.inside)):
            told = ", ".join(f"{verdict} {times}" for verdict, times in counts.most_common())
            reason = f" ({self.reasons[side]})" if side in self.reasons else ""
            sides.append(f"{side}: {told}{reason}")
        return "; ".join(sides)


def differing(outside: Report, inside: Report) -> list[str]:
    """The tests whose verdicts are not the same, or that are on one side only."""
    return sorted(
        test
        for test in outside.keys() | inside.keys()
        if test not in outside or test not in inside or outside[test].verdict != inside[test].verdict
    )


def named(package: str, pair: str, test: str, known: Iterable[Named]) -> Named | None:
    """The known difference that a test is, if any."""
    for one in known:
        if one.package == package and one.test == test and (not one.pairs or pair in one.pairs):
            return one
    return None


def gone(package: str, pair: str, tests: Iterable[str], known: Iterable[Named]) -> list[str]:
    """Differences that are explained and no longer there."""
    found = set(tests)
    return [
        one.test
        for one in known
        if one.package == package and not one.varies and (not one.pairs or pair in one.pairs) and one.test not in found
    ]


def settled(seen: Seen, known: Named | None) -> bool:
    """Whether a difference is explained, or no difference: the test does outside what it does in the slot."""
    if known is None:
        return seen.varies_outside
    return not known.varies or ABSENT not in seen.outside.keys() | seen.inside.keys()


def counted(package: str, report: Report, known: Iterable[Named]) -> Counter[str]:
    """How many tests had which verdict; those that vary are counted as such, whatever came out this time."""
    varying = {one.test for one in known if one.package == package and one.varies}
    return Counter("varies" if test in varying else case.verdict for test, case in report.items())
