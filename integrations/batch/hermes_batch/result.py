"""The state and the sums of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_agent import TokenUsage
from hermes_batch.tally import Tally


@dataclass
class Spending:
    """A cost and a number of tokens (of prompts and completions)."""

    cost: float = 0.0
    tokens: int = 0

    def add_usage(self, usage: TokenUsage) -> None:
        """Add the usage of completions."""
        self.cost += usage.cost
        self.tokens += usage.prompt_tokens + usage.completion_tokens

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Add the usage in a record."""
        self.cost += float(record.get("cost") or 0.0)
        self.tokens += int(record.get("prompt_tokens") or 0) + int(record.get("completion_tokens") or 0)


@dataclass
class BatchResult:
    """The state of a run of `total` samples of prompts. The records are in the file (`read_records`).

    `kept` records are from earlier invocations, whose `seconds` are included if they ended normally. `others` of these
    belong to no sample of the run: their prompts left the dataset or the selection. They count in `total`. `stopped`
    is the reason why the run ended before all samples had a record: the model's endpoint was down, or the budget used
    up (None: it did not stop early).
    """

    out: Path
    total: int
    tally: Tally = field(default_factory=Tally)
    kept: int = 0
    others: int = 0
    seconds: float = 0.0
    spending: Spending = field(default_factory=Spending)
    """The cost and the tokens of all completions, also of episodes that were cancelled or are run again."""
    stopped: str | None = None
    left_out: tuple[str, ...] = ()
    """Toolsets and tools that this package does not have."""

    @property
    def recorded(self) -> Spending:
        """The part of `spending` that the records have."""
        return Spending(self.tally.cost, self.tally.prompt_tokens + self.tally.completion_tokens)

    @property
    def records(self) -> int:
        """The number of records."""
        return self.tally.records

    @property
    def complete(self) -> bool:
        """Whether every sample of every prompt has a record."""
        return self.records == self.total

    @property
    def solved(self) -> int:
        """The number of records whose check exited with 0."""
        return self.tally.words["solved"]

    @property
    def unscored(self) -> int:
        """The number of records that may not be scored because of infrastructure, the provider or a broken task."""
        return self.tally.words["unscored"]

    @property
    def tool_calls(self) -> int:
        """The number of tool calls in all records."""
        return self.tally.tool_calls
