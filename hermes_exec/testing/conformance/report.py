"""The report of a run of the suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hermes_exec.testing.conformance.facts import Facts

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check. `skipped`: the backend or image cannot provide the behaviour, for `reason`."""

    name: str
    group: str
    meaning: str
    status: Status
    reason: str = ""
    duration_s: float = 0.0


@dataclass(slots=True)
class Report:
    """All outcomes in order of arrival, and the facts behind them."""

    facts: Facts
    outcomes: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0

    def having(self, status: Status) -> list[Outcome]:
        """Return the outcomes with one status, sorted by group and name."""
        return sorted((o for o in self.outcomes if o.status == status), key=lambda o: (o.group, o.name))

    @property
    def passed(self) -> int:
        """The number of checks that passed."""
        return len(self.having("passed"))

    @property
    def failed(self) -> int:
        """The number of checks that failed."""
        return len(self.having("failed"))

    @property
    def skipped(self) -> int:
        """The number of behaviours that this backend or image cannot provide."""
        return len(self.having("skipped"))

    def summary(self) -> str:
        """Return the last line: `N passed, N failed, N skipped`."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
