"""The record of one prompt: the fields that data sets of this kind have, and ours beside them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TypedDict

from hermes_agent.episode import Episode
from hermes_agent.trajectories.sharegpt import ToolStats, Turn, sharegpt, tool_stats
from hermes_batch.dataset import Task
from hermes_exec.tools import KNOWN_TOOLS


class Metadata(TypedDict):
    """Where a record comes from."""

    batch_num: int
    timestamp: str
    model: str


class CheckResult(TypedDict):
    """What the task's check did. `exit_code` is None when there was no check or it could not be run."""

    exit_code: int | None
    timed_out: bool
    output: str


class Failure(TypedDict):
    """Something that went wrong in an episode."""

    turn: int
    where: str
    kind: str
    message: str


class Record(TypedDict):
    """One line of `trajectories.jsonl`.

    Up to `tool_error_counts` the fields are those of the Hermes batch runner; every known tool is in `tool_stats` and
    `tool_error_counts`, so that all records have one schema. `solved` is None where there was no check or the episode
    may not be scored; `trainable` is False for the latter, and `cause` says whose doing the end was. `task_digest`
    stands for what the prompt's line asked.
    """

    prompt_index: int
    conversations: list[Turn]
    metadata: Metadata
    completed: bool
    partial: bool
    api_calls: int
    toolsets_used: list[str]
    tool_stats: dict[str, ToolStats]
    tool_error_counts: dict[str, int]
    id: str
    finish: str
    cause: str
    trainable: bool
    solved: bool | None
    check: CheckResult
    turns: int
    tool_calls: int
    unknown_tools: list[str]
    errors: list[Failure]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    backend: str
    image: str
    isolation: str
    sandbox: str
    task_digest: str


class Place(TypedDict):
    """Where an episode ran; empty texts for one that never had a slot."""

    backend: str
    image: str
    isolation: str
    sandbox: str


NO_CHECK: CheckResult = {"exit_code": None, "timed_out": False, "output": ""}


def make_record(
    task: Task,
    episode: Episode | None,
    *,
    model: str,
    toolsets: list[str],
    place: Place,
    seconds: float,
    check: CheckResult = NO_CHECK,
    solved: bool | None = None,
    failure: Failure | None = None,
    cause: str | None = None,
) -> Record:
    """The record of a prompt.

    `failure` is what kept the prompt from being scored besides the episode itself, with its `cause`: the record is then
    not trainable and has no score. Without an `episode` it holds the prompt alone.
    """
    calls = [] if episode is None else [(call.name, call.ok) for call in episode.tool_calls if call.name]
    stats = tool_stats(calls, KNOWN_TOOLS)
    errors: list[Failure] = [] if episode is None else [_failure(error) for error in episode.errors]
    trainable = episode is not None and episode.trainable and failure is None
    usage = None if episode is None else episode.usage
    finish = "infra" if episode is None or failure is not None else episode.finish
    return {
        "prompt_index": task.index,
        "conversations": sharegpt([{"role": "user", "content": task.prompt}], ())
        if episode is None
        else episode.to_sharegpt(),
        "metadata": {"batch_num": 0, "timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "model": model},
        "completed": finish == "answered",
        "partial": finish != "answered",
        "api_calls": 0 if usage is None else usage.requests,
        "toolsets_used": toolsets,
        "tool_stats": stats,
        "tool_error_counts": {name: counts["failure"] for name, counts in stats.items()},
        "id": task.name,
        "finish": finish,
        "cause": cause or ("infra" if episode is None else episode.cause.value),
        "trainable": trainable,
        "solved": solved if trainable else None,
        "check": check,
        "turns": 0 if episode is None else episode.turns,
        "tool_calls": 0 if episode is None else len(episode.tool_calls),
        "unknown_tools": sorted(Counter(name for name, _ in calls if name not in stats)),
        "errors": [*errors, *([failure] if failure is not None else [])],
        "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
        "completion_tokens": 0 if usage is None else usage.completion_tokens,
        "seconds": round(seconds, 3),
        **place,
        "task_digest": task.digest,
    }


def _failure(error: object) -> Failure:
    return {
        "turn": int(getattr(error, "turn", 0)),
        "where": str(getattr(error, "where", "")),
        "kind": str(getattr(error, "kind", "")),
        "message": str(getattr(error, "message", "")),
    }
