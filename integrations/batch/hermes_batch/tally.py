"""The sums of a run, kept record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_agent.episode import EpisodeError, ending_error
from hermes_batch.columns import decode_list


@dataclass
class Tally:
    """What the records that were added have together; it does not grow with their number."""

    words: Counter[str] = field(default_factory=Counter)
    """Records by `outcome`."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records that were neither solved nor answered, by cause and by how they ended."""
    errors: Counter[str] = field(default_factory=Counter)
    """Records that may not be scored, by the kind of error that ended them."""
    examples: dict[str, str] = field(default_factory=dict)
    """What the first error of each kind said."""
    backends: set[str] = field(default_factory=set)
    levels: set[str] = field(default_factory=set)
    tool_calls: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        word = outcome(record)
        self.words[word] += 1
        if word not in {"solved", "answered"}:
            self.ends[str(record.get("cause", "")), str(record.get("finish", ""))] += 1
        if word == "unscored":
            why = reason(record)
            self.errors[why.kind] += 1
            self.examples.setdefault(why.kind, why.message)
        self.backends.add(str(record.get("backend", "")))
        self.levels |= {str(record.get("isolation") or "")} - {""}
        self.tool_calls += int(record.get("tool_calls", 0))
        self.completion_tokens += int(record.get("completion_tokens", 0))
        self.seconds += float(record.get("seconds", 0))

    @property
    def records(self) -> int:
        """How many were added."""
        return self.words.total()


def outcome(record: Mapping[str, Any]) -> str:
    """One word for what became of a prompt: solved, unsolved, unscored, or how it ended where nothing was checked."""
    solved = str(record.get("solved", "unchecked"))
    return str(record.get("finish", "done")) if solved == "unchecked" else solved


class Reason(NamedTuple):
    """Why a record may not be scored: the error that ended it, or how it ended and whose doing that was."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def reason(record: Mapping[str, Any]) -> Reason:
    """Why a record may not be scored; an empty one for a record that may."""
    if record.get("trainable", True):
        return Reason("", "")
    errors = [error for error in decode_list(record, "errors") if isinstance(error, dict)]
    ending = ending_error(str(record.get("finish", "")), map(_to_episode_error, errors))
    if ending is None:
        finish, cause = str(record.get("finish", "")), str(record.get("cause", ""))
        return Reason(finish, "" if cause == finish else cause)
    return Reason(ending.kind, ending.message)


def _to_episode_error(error: Mapping[str, Any]) -> EpisodeError:
    where, kind, message = (str(error.get(name, "")) for name in ("where", "kind", "message"))
    return EpisodeError(0, where, kind, message)  # type: ignore[arg-type]  # what a file says
