"""The record of one prompt: the fields that datasets of this kind have, and our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypedDict, cast

from hermes_agent import CallRecord, CheckFailed, EpisodeError, RolloutResult
from hermes_agent.messages import CallState, Message
from hermes_agent.parsers.json_text import dump
from hermes_agent.trajectories.sharegpt import ShareGPTTurn, sharegpt, tool_stats
from hermes_agent.trajectories.sharegpt_reader import export_problem
from hermes_batch.artifacts import artifact_directory
from hermes_batch.columns import JSON_COLUMNS
from hermes_batch.images import extract_images
from hermes_batch.measurements import TimingFacts, measure, token_facts
from hermes_batch.program import Program, describe_program
from hermes_batch.units import Unit

Solved = Literal["solved", "unsolved", "unscored", "unchecked"]


class Metadata(TypedDict):
    """The origin of a record."""

    batch_num: int
    timestamp: str
    model: str


class CheckResult(TypedDict):
    """The result of the task's check. `exit_code` is -1 if there was no check or no verdict. `timed_out` means that the
    check exceeded its time limit or was killed.
    """

    exit_code: int
    timed_out: bool
    output: str


class CallFacts(TypedDict):
    """One call of the model: how far it got (`CallState`) and whether it succeeded."""

    turn: int
    tool_call_id: str
    name: str
    state: CallState
    ok: bool
    error_kind: str | None
    duration_s: float


class ErrorFacts(TypedDict):
    """An error in an episode: `where` is as in `EpisodeError`, or `collect` for files that were not collected."""

    turn: int
    where: str
    kind: str
    message: str


class Record(TypedDict):
    """One line of `trajectories.jsonl`.

    The fields up to `tool_error_counts` are the same as in the Hermes batch runner. `messages` is the conversation as
    sent to the model, and `tools` are the function schemas. `conversations` is a rendering of the messages;
    `exportable` means that it re-reads as the same messages (`export_problem`: why not). `solved` is `unscored` if the
    outcome does not depend on the model (`trainable` is False and `cause` names the cause) and `unchecked` if the task
    has no check. `attempts` counts the attempts at the prompt: more than one if a slot failed. `group` and `sample` are
    the key of the record: the content of the prompt, and the number of the sample from 0. `reward` is null if nothing
    was scored, and `reward_info` has the scorer's further values. `task_digest` identifies the prompt's line and
    `task_metadata` is its `metadata`. `screenshots` are the images of messages and tool results, as files, and
    `artifacts` the files that were collected from the slot. `usage` is the usage of each completion, `tokens`
    are the token ids of each turn, if the model returned them, and `timings` are the parts of `seconds`.

    `program` is the harness that worked in place of the agent loop. The conversation is then its main one, `usage` has
    the completions of all, and `roots` and `sequences` count the conversations that it began and their ends. The
    `calls` of a harness have no records, so that `tool_stats` are empty, but `tool_calls` counts them.

    Columns that can be empty or have any structure are JSON text (`hermes_batch.JSON_COLUMNS`), so that every column
    has one type in all records.
    """

    prompt_index: int
    conversations: list[ShareGPTTurn]
    metadata: Metadata
    completed: bool
    partial: bool
    api_calls: int
    toolsets_used: list[str]
    tool_stats: str
    tool_error_counts: str
    id: str
    messages: str
    tools: str
    exportable: bool
    export_problem: str
    finish: str
    cause: str
    trainable: bool
    solved: Solved
    check: CheckResult
    turns: int
    tool_calls: int
    calls: str
    unknown_tools: str
    errors: str
    screenshots: str
    artifacts: str
    usage: str
    tokens: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    cost: float
    seconds: float
    timings: TimingFacts
    started: str
    ended: str
    sampling: str
    compacted: bool
    version: str
    program: str
    program_exit_code: int
    program_output: str
    roots: int
    sequences: int
    attempts: int
    backend: str
    image: str
    isolation: str
    sandbox: str
    task_digest: str
    task_metadata: str
    group: str
    sample: int
    reward: str
    reward_info: str


class RecordWithImages(NamedTuple):
    """A record and its images: path relative to the trajectories to content."""

    record: Record
    images: dict[str, bytes]


def make_record(
    unit: Unit,
    messages: Sequence[Message],
    result: RolloutResult,
    *,
    model: str,
    toolsets: Sequence[str],
    program: Program | None = None,
    backend: str,
    image: str,
    attempts: int = 1,
    mask: Callable[[Any], Any] = lambda data: data,
) -> RecordWithImages:
    """Return the record of a sample of a prompt. `mask` masks secrets in all of it.

    A prompt without an episode or a score is `unscored` and not trainable. Without an episode, the record holds the
    `messages` that would have begun it.
    """
    task = unit.task
    episode, verdict, error = result.episode, result.verdict, result.error
    calls = [] if episode is None else [(call.name, call.ok) for call in episode.tool_calls if call.name]
    extracted = extract_images(
        f"{task.group}-{unit.sample}",
        messages if episode is None else episode.messages,
        () if episode is None else episode.tool_calls,
    )
    # Schemas of host tools have `runs_on`, which is not sent to the model.
    tools = [] if episode is None else [{key: tool[key] for key in tool if key != "runs_on"} for tool in episode.tools]
    judged = [] if episode is None or episode.captured is not None else tools
    stats = tool_stats(calls, [str(tool["function"]["name"]) for tool in judged])
    errors = [*(() if episode is None else episode.errors), *(() if error is None else (error,))]
    # Masked before conversion to JSON, because a secret that is escaped twice would not be found.
    original = (extracted.messages, tools)
    sent, tools = mask(extracted.messages), mask(tools)
    conversations = sharegpt(sent, tools)
    problem = export_problem(sent, conversations)
    record: dict[str, Any] = {
        "prompt_index": task.index,
        "conversations": conversations,
        "metadata": {"batch_num": 0, "timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "model": model},
        "completed": result.finish == "answered",
        "partial": result.finish != "answered",
        "api_calls": 0 if episode is None else episode.usage.requests,
        "toolsets_used": list(toolsets),
        "tool_stats": stats,
        "tool_error_counts": {name: counts["failure"] for name, counts in stats.items()},
        "id": task.name,
        "messages": sent,
        "tools": tools,
        "exportable": not problem,
        "export_problem": problem,
        "finish": result.finish,
        "cause": result.cause.value,
        "trainable": result.trainable,
        "solved": _verdict_word(result),
        "check": {
            "exit_code": -1 if verdict is None or verdict.exit_code is None else verdict.exit_code,
            "timed_out": isinstance(result.exception, CheckFailed),
            "output": "" if verdict is None else verdict.output,
        },
        "turns": 0 if episode is None else episode.turns,
        "tool_calls": 0 if episode is None else episode.call_count,
        "calls": [] if episode is None else [_call_facts(call) for call in episode.tool_calls],
        "unknown_tools": sorted({name for name, _ in calls} - stats.keys()),
        "errors": [*map(_error_facts, errors), *_left_out(result)],
        "screenshots": extracted.screenshots,
        "artifacts": [f"{artifact_directory(unit)}/{path}" for path in result.collected.paths],
        **measure(result),
        **describe_program(program, episode),
        "attempts": attempts,
        "backend": backend,
        "image": image,
        "isolation": result.isolation,
        "sandbox": result.sandbox,
        "task_digest": task.digest,
        "task_metadata": _mask_names(task.metadata, mask),
        "group": task.group,
        "sample": unit.sample,
        "reward": result.reward,
        "reward_info": {} if result.reward is None or verdict is None else _mask_names(dict(verdict.info), mask),
    }
    masked = mask(record)
    # Token ids cannot be masked. A conversation with a secret gets none.
    masked["tokens"] = token_facts(episode.tokens) if episode is not None and (sent, tools) == original else []
    texts = {name: dump(masked[name]) for name in JSON_COLUMNS}
    return RecordWithImages(cast("Record", {**masked, **texts}), extracted.files)


def _mask_names(data: object, mask: Callable[[str], str]) -> object:
    """Mask the keys of metadata too. Unlike the keys of other columns, they can be anything."""
    if isinstance(data, dict):
        return {mask(name): _mask_names(value, mask) for name, value in data.items()}
    return [_mask_names(value, mask) for value in data] if isinstance(data, list) else data


def _verdict_word(result: RolloutResult) -> Solved:
    if not result.trainable:
        return "unscored"
    if result.solved is None:
        return "unchecked"
    return "solved" if result.solved else "unsolved"


def _call_facts(call: CallRecord) -> CallFacts:
    return {
        "turn": call.turn,
        "tool_call_id": call.call_id,
        "name": call.name,
        "state": call.state,
        "ok": call.ok,
        "error_kind": call.error_kind,
        "duration_s": round(call.duration_s, 6),
    }


def _left_out(result: RolloutResult) -> list[ErrorFacts]:
    """Return an error for each reason why files were not collected."""
    turn = 0 if result.episode is None else result.episode.turns
    return [
        {"turn": turn, "where": "collect", "kind": "left_out", "message": problem}
        for problem in result.collected.problems
    ]


def _error_facts(error: EpisodeError) -> ErrorFacts:
    return {"turn": error.turn, "where": error.where, "kind": error.kind, "message": error.message}
