"""What a run of the suite found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hermes_exec.testing.conformance.facts import Facts

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check's outcome; `skipped` means that this backend or image cannot give the behaviour, for `reason`."""

    name: str
    group: str
    meaning: str
    status: Status
    reason: str = ""
    duration_s: float = 0.0


@dataclass(slots=True)
class Report:
    """All outcomes in the order in which they came, and the facts they rest on."""

    facts: Facts
    outcomes: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0

    def having(self, status: Status) -> list[Outcome]:
        """The outcomes with one status, by group and name."""
        return sorted((o for o in self.outcomes if o.status == status), key=lambda o: (o.group, o.name))

    @property
    def passed(self) -> int:
        """How many checks passed."""
        return len(self.having("passed"))

    @property
    def failed(self) -> int:
        """How many checks failed."""
        return len(self.having("failed"))

    @property
    def skipped(self) -> int:
        """How many behaviours are not given here."""
        return len(self.having("skipped"))

    def summary(self) -> str:
        """The last line: `N passed, N failed, N skipped`."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
