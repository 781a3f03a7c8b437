"""What an attack is, and what can be said of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.attack.arena import Arena

Verdict = Literal["prevented", "contained", "not given", "not tried"]
Against = Literal["neighbour", "host", "runner", "driver", "own"]
Means = Callable[["Arena", "Attack", Against], Awaitable["Outcome"]]


@dataclass(frozen=True)
class Outcome:
    """What was seen. `detail` is for people: loot, harm, or why an attack was not fired."""

    verdict: Verdict
    detail: str = ""
    slower: float | None = None
    """The neighbour's call at its 95th percentile during the attack, over that before and after."""
    measured: str = ""
    """Figures for the page besides."""


def together(rounds: Sequence[Outcome]) -> Outcome:
    """The worst of what was seen, with the median of how much slower the neighbour was."""
    slower = [outcome.slower for outcome in rounds if outcome.slower is not None]
    worst = next((outcome for outcome in rounds if outcome.verdict == "not given"), rounds[0])
    return replace(worst, slower=median(slower)) if slower else worst


@dataclass(frozen=True)
class Attack:
    """One row of the table: a function of a program in the attacker's slot, or `by`, which drives it from outside."""

    name: str
    area: str
    does: str
    """One line for the page."""
    program: str = ""
    """`files.by_path` is the function `by_path` of programs/files.py."""
    against: tuple[Against, ...] = ("neighbour",)
    by: Means | None = None
    network: bool = True
    """False: fired in slots without network."""
    proof: tuple[str, ...] = ()
    """What a slot must be shown to be confined in before this is fired: of `pids`, `memory`, `processes`, `disk`."""
    why: str = ""
    """Why it is not given where it is not, and what closes it; for the page."""
    own_sandbox: bool = False
    """In a whole sandbox, and in a root of its own, this concerns the tenant's own image only: what works there is
    contained."""
    limit: str = ""
    """The limit that has to hold for this to be contained; without it nothing would have stopped it."""
    read: bool = True
    """False: the driver holds the stream of its output open and reads nothing."""
    rounds: int = 1
    """How often it is fired where the neighbour's calls are measured."""
    succeeds_alone: bool = True
    """Fired within one slot it has to succeed: this shows that the attack is one."""


@dataclass(frozen=True)
class Row:
    """One attack on one target, as it stands in the table."""

    attack: Attack
    against: Against

    @property
    def id(self) -> str:
        """What a test of this row is called."""
        return f"{self.attack.area}: {self.attack.name}" + ("" if self.only else f" ({self.against})")

    @property
    def only(self) -> bool:
        """Whether the attack has one target only, which its name tells."""
        return len(self.attack.against) == 1
