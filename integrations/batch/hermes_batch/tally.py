"""The totals of a run, updated with each record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_agent.episode import EpisodeError, ending_error
from hermes_batch.columns import decode_list
from hermes_batch.groups import Groups


@dataclass
class Tally:
    """The totals of the added records. Its size grows with the number of prompts by about 300 bytes each."""

    words: Counter[str] = field(default_factory=Counter)
    """Records by `outcome`."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records that were neither solved nor answered, by cause and finish."""
    errors: Counter[str] = field(default_factory=Counter)
    """Records that may not be scored, by the kind of error that ended them."""
    examples: dict[str, str] = field(default_factory=dict)
    """The message of the first error of each kind."""
    backends: set[str] = field(default_factory=set)
    levels: set[str] = field(default_factory=set)
    failed_programs: int = 0
    """Records whose program ended with an exit code other than 0 after an answer of the model."""
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    groups: Groups = field(default_factory=Groups)

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
        if level := record.get("isolation"):
            self.levels.add(str(level))
        self.failed_programs += program_failure(record) is not None
        self.tool_calls += int(record.get("tool_calls", 0))
        self.prompt_tokens += int(record.get("prompt_tokens", 0))
        self.completion_tokens += int(record.get("completion_tokens", 0))
        self.cost += float(record.get("cost", 0))
        self.seconds += float(record.get("seconds", 0))
        self.groups.add(record)

    @property
    def records(self) -> int:
        """The number of added records."""
        return self.words.total()

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of records by `solved`, `unsolved`, `unscored`, and `unchecked`: the others."""
        scored = {name: self.words[name] for name in ("solved", "unsolved", "unscored")}
        return {**scored, "unchecked": self.records - sum(scored.values())}


def outcome(record: Mapping[str, Any]) -> str:
    """Return the outcome of a prompt in one word: solved, unsolved, unscored, or its finish if there was no check."""
    solved = str(record.get("solved", "unchecked"))
    return str(record.get("finish", "done")) if solved == "unchecked" else solved


class Reason(NamedTuple):
    """The reason why a record may not be scored: the error that ended it, or its finish and cause."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def reason(record: Mapping[str, Any]) -> Reason:
    """Return the reason why a record may not be scored. It is empty if the record may be scored."""
    if record.get("trainable", True):
        return Reason("", "")
    errors = [error for error in decode_list(record, "errors") if isinstance(error, dict)]
    ending = ending_error(str(record.get("finish", "")), map(_to_episode_error, errors))
    if ending is None:
        finish, cause = str(record.get("finish", "")), str(record.get("cause", ""))
        return Reason(finish, "" if cause == finish else cause)
    return Reason(ending.kind, ending.message)


def program_failure(record: Mapping[str, Any]) -> int | None:
    """Return the exit code of a program that failed after an answer of the model, which its `finish` does not show."""
    code = record.get("program_exit_code", -1)
    return code if record.get("finish") == "answered" and isinstance(code, int) and code > 0 else None


def _to_episode_error(error: Mapping[str, Any]) -> EpisodeError:
    where, kind, message = (str(error.get(name, "")) for name in ("where", "kind", "message"))
    return EpisodeError(0, where, kind, message)  # type: ignore[arg-type]  # from a file
