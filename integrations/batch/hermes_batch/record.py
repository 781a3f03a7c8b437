"""The record of one prompt: the fields that data sets of this kind have, and ours beside them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict

from hermes_agent import CheckFailed, Episode, EpisodeError, RolloutResult, TokenUsage
from hermes_agent.trajectories.sharegpt import ToolStats, Turn, sharegpt, tool_stats
from hermes_batch.dataset import Task
from hermes_exec.tools import KNOWN_TOOLS

SCREENSHOTS = "screenshots"


class Metadata(TypedDict):
    """Where a record comes from."""

    batch_num: int
    timestamp: str
    model: str


class CheckResult(TypedDict):
    """What the task's check did. `exit_code` is None when there was no check, or it came to no verdict; `timed_out`
    says that it took too long or was killed.
    """

    exit_code: int | None
    timed_out: bool
    output: str


class Failure(TypedDict):
    """Something that went wrong in an episode."""

    turn: int
    where: str
    kind: str
    message: str


class Screenshot(TypedDict):
    """An image of a result: `path` is that of its PNG file beside the trajectories."""

    tool_call_id: str
    path: str


class Record(TypedDict):
    """One line of `trajectories.jsonl`.

    Up to `tool_error_counts` the fields are those of the Hermes batch runner; every known tool is in `tool_stats` and
    `tool_error_counts`, so that all records have one schema. `solved` is None where there was no check or the episode
    may not be scored; `trainable` is False for the latter, and `cause` says whose doing the end was. `task_digest`
    stands for what the prompt's line asked. `attempts` is how often the prompt was worked on: more than once where a
    slot failed. `screenshots` are the images of tool results, as PNG files of their own.
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
    screenshots: list[Screenshot]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    attempts: int
    backend: str
    image: str
    isolation: str
    sandbox: str
    task_digest: str


def make_record(
    task: Task,
    result: RolloutResult,
    *,
    model: str,
    toolsets: Sequence[str],
    backend: str,
    image: str,
    attempts: int = 1,
) -> Record:
    """The record of a prompt. What kept it from an episode or a score makes it not trainable and without a score; one
    without an episode holds the prompt alone.
    """
    episode, verdict, error = result.episode, result.verdict, result.error
    calls = [] if episode is None else [(call.name, call.ok) for call in episode.tool_calls if call.name]
    offered = set() if episode is None else {str(tool["function"]["name"]) for tool in episode.tools}
    stats = tool_stats(calls, KNOWN_TOOLS)
    errors = [*(() if episode is None else episode.errors), *(() if error is None else (error,))]
    usage = TokenUsage() if episode is None else episode.usage
    return {
        "prompt_index": task.index,
        "conversations": sharegpt([{"role": "user", "content": task.prompt}], ())
        if episode is None
        else episode.to_sharegpt(),
        "metadata": {"batch_num": 0, "timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "model": model},
        "completed": result.finish == "answered",
        "partial": result.finish != "answered",
        "api_calls": usage.requests,
        "toolsets_used": list(toolsets),
        "tool_stats": stats,
        "tool_error_counts": {name: counts["failure"] for name, counts in stats.items()},
        "id": task.name,
        "finish": result.finish,
        "cause": result.cause.value,
        "trainable": result.trainable,
        "solved": result.solved,
        "check": {
            "exit_code": None if verdict is None else verdict.exit_code,
            "timed_out": isinstance(result.exception, CheckFailed),
            "output": "" if verdict is None else verdict.output,
        },
        "turns": 0 if episode is None else episode.turns,
        "tool_calls": 0 if episode is None else len(episode.tool_calls),
        "unknown_tools": sorted({name for name, _ in calls} - offered),
        "errors": [_failure(one) for one in errors],
        "screenshots": [screenshot for screenshot, _ in screenshots_of(task, episode)],
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "seconds": round(result.seconds, 3),
        "attempts": attempts,
        "backend": backend,
        "image": image,
        "isolation": result.isolation,
        "sandbox": result.sandbox,
        "task_digest": task.digest,
    }


def screenshots_of(task: Task, episode: Episode | None) -> list[tuple[Screenshot, bytes]]:
    """The images of a prompt's results, each with its PNG."""
    calls = () if episode is None else episode.tool_calls
    images = [(call.call_id, image) for call in calls for image in call.images]
    return [
        ({"tool_call_id": call_id, "path": f"{SCREENSHOTS}/{task.index}-{number}.png"}, image)
        for number, (call_id, image) in enumerate(images, 1)
    ]


def _failure(error: EpisodeError) -> Failure:
    return {"turn": error.turn, "where": error.where, "kind": error.kind, "message": error.message}
