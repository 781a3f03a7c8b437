"""The statistics of a report: tools and their errors, and the figures of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_batch.columns import decode_list
from hermes_batch.row_selection import count_tokens


@dataclass
class ToolFigures:
    """The calls of one tool."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class ReportStatistics:
    """The statistics of the added records. Its size grows by four numbers a record."""

    tools: dict[str, ToolFigures] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        self.turns.append(float(record.get("turns", 0)))
        self.tokens.append(float(count_tokens(record)))
        self.seconds.append(float(record.get("seconds", 0)))
        self.costs.append(float(record.get("cost", 0)))
        for call in decode_list(record, "calls"):
            if isinstance(call, dict):
                self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        figures = self.tools.setdefault(str(call.get("name") or "(not understood)"), ToolFigures())
        figures.calls += 1
        figures.seconds += float(call.get("duration_s") or 0)
        if not call.get("ok"):
            figures.failures += 1
            figures.errors[str(call.get("error_kind") or "failed")] += 1


def list_error_kinds(record: Mapping[str, Any]) -> list[str]:
    """Return the kinds of the errors of a record and of its calls, each once."""
    calls = [call for call in decode_list(record, "calls") if isinstance(call, dict)]
    errors = [error for error in decode_list(record, "errors") if isinstance(error, dict)]
    kinds = [call.get("error_kind") for call in calls] + [error.get("kind") for error in errors]
    return sorted({str(kind) for kind in kinds if kind})
