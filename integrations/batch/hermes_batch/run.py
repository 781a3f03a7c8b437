"""The run: every prompt of the file, some at a time, and a line of results as each one ends."""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from hermes_agent import (
    AccessRefused,
    EndpointFailing,
    Hooks,
    Model,
    OpenAIModel,
    Rollout,
    RolloutResult,
    SessionModel,
    Turn,
)
from hermes_agent.models.endpoint import EndpointStatus
from hermes_agent.parsers.unread import UNREAD_CALLS
from hermes_batch.config import BatchConfig
from hermes_batch.dataset import Task, read_dataset
from hermes_batch.failures import find_outage, find_refusal, is_infrastructure_failure
from hermes_batch.record import Record, RecordWithImages, make_record
from hermes_batch.report.report import REPORT, write_report
from hermes_batch.settings import SETTINGS, read_config, read_settings, write_settings
from hermes_batch.tally import Tally
from hermes_batch.trajectories import TRAJECTORIES, Trajectories
from hermes_exec import ConfigError
from hermes_exec.tools import select


@dataclass
class BatchResult:
    """What a run did so far, of `total` prompts; the records themselves are in the file (`read_records`).

    `kept` of them are of earlier invocations, whose `seconds` are counted too where they ended by themselves. `stopped`
    says why the run ended before all prompts had a record: the model's endpoint was away (None: it did not).
    """

    out: Path
    total: int
    tally: Tally = field(default_factory=Tally)
    kept: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    left_out: tuple[str, ...] = ()
    """Toolsets, and tools of toolsets, that this package does not have."""

    @property
    def records(self) -> int:
        """Prompts that have their record."""
        return self.tally.records

    @property
    def complete(self) -> bool:
        """Every prompt has its record."""
        return self.records == self.total

    @property
    def solved(self) -> int:
        """Prompts whose check ended with 0."""
        return self.tally.words["solved"]

    @property
    def unscored(self) -> int:
        """Prompts that may not be scored: infrastructure, provider, a broken task."""
        return self.tally.words["unscored"]

    @property
    def tool_calls(self) -> int:
        """Tool calls of all prompts."""
        return self.tally.tool_calls


OnStart = Callable[[BatchResult], None]
OnRecord = Callable[[BatchResult, Record], None]
OnEndpoint = Callable[[EndpointStatus], None]
_STATUS_INTERVAL_S = 1.0
_FIRST_ANSWERS = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
logger = logging.getLogger(__name__)


class RunCallbacks(NamedTuple):
    """Functions that a run calls as it goes on."""

    on_start: OnStart | None = None
    on_record: OnRecord | None = None
    on_endpoint: OnEndpoint | None = None


async def run_batch(
    config: BatchConfig,
    *,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_endpoint: OnEndpoint | None = None,
) -> BatchResult:
    """Work on every prompt in a slot of its own; write `trajectories.jsonl`, `report.html` and `run.json` into `out`.

    The dataset, the model and the pool's settings are checked before anything is started. Records are written as they
    end, each on the disk before the next prompt is begun in its place, and are not held here; a cancelled run keeps
    those it has, ends its sandboxes and writes the report of them, and `resume_batch` goes on with it, also when it was
    killed. Secrets of the pool are masked in the records. Trouble of a single prompt is in its record (`trainable`
    False where it may not be scored), once it was tried again (`BatchConfig.retries`). A prompt that waited in vain for
    an endpoint that is away has no record: it waits on, or the run stops (`BatchConfig.on_outage`). `on_start` is
    called when the backend has answered, `on_record` after each record, and `on_endpoint` each second with how the
    model's endpoint does.

    Raises ConfigError (dataset, settings, an `out` that has results already; and in the middle of the run when the
    model's endpoint refuses the key or its quota is used up, when it has answered none of the first eight prompts, or
    of all where there are fewer, and refused each, or when the first eight answers, or all, have calls that no parser
    has read), BackendUnavailable, ImageError, and ExecError when `out` cannot be written (a full disk).
    """
    tasks = _read_tasks(config)
    _check_no_results(config)

    def create() -> Trajectories:
        lines = Trajectories.create(config.out, overwrite=config.overwrite)
        for stale in (REPORT, SETTINGS):
            (config.out / stale).unlink(missing_ok=True)
        return lines

    callbacks = RunCallbacks(on_start, on_record, on_endpoint)
    return await _Invocation(config, tasks, BatchResult(config.out, len(tasks)), callbacks).run(create)


async def resume_batch(
    out: Path,
    *,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_endpoint: OnEndpoint | None = None,
    **changes: Any,
) -> BatchResult:
    """Go on with the run in `out`, with the settings that it was started with and its dataset as it was.

    Prompts that have a result are not worked on again. Those without one are, and after them those whose record may not
    be scored (infrastructure, provider, called off): its place is taken by the new one. `changes` are fields of
    BatchConfig that shall be others from now on; a key, a secret or a model object is not written down and must be
    given again. When nothing is left to do, only the report is written.

    Raises ConfigError (no run in `out`, another process works on it, the dataset is not what it was) and what
    `run_batch` raises.
    """
    config = read_config(Path(out), **changes)
    tasks = _read_tasks(config)
    earlier = _EarlierRecords(config, tasks)
    with Trajectories.reopen(config.out, earlier.keep) as lines:
        result = BatchResult(config.out, len(tasks), earlier.tally, earlier.tally.records)
        result.seconds = float(read_settings(config.out).get("seconds") or 0.0)
        if result.complete:
            write_report(config.out)
            return result
        left = [task for task in tasks if task.index not in earlier.done]
        left.sort(key=lambda task: task.index in earlier.again)  # what may be refused again keeps nothing waiting
        callbacks = RunCallbacks(on_start, on_record, on_endpoint)
        return await _Invocation(config, left, result, callbacks).run(lambda: lines)


class _EarlierRecords:
    """Decides which records of earlier invocations are kept: one trainable record for each of these prompts."""

    def __init__(self, config: BatchConfig, tasks: list[Task]) -> None:
        self._dataset = config.dataset
        self._tasks = {task.index: task for task in tasks}
        self.done: set[int] = set()
        self.again: set[int] = set()
        self.tally = Tally()

    def keep(self, record: Mapping[str, Any]) -> bool:
        index = int(record["prompt_index"])
        task = self._tasks.get(index)
        if task is None or record.get("task_digest") != task.digest:
            raise ConfigError(
                f"prompt {index} of {self._dataset} is not the one that the run worked on; go on with the dataset as "
                "it was (prompts may have been added at its end)"
            )
        if not record.get("trainable") or index in self.done:
            self.again.add(index)
            return False
        self.done.add(index)
        self.tally.add(record)
        return True


class _Invocation:
    """One invocation: works on these prompts and counts their results."""

    def __init__(self, config: BatchConfig, tasks: list[Task], result: BatchResult, callbacks: RunCallbacks) -> None:
        self._config, self._result = config, result
        result.left_out = config.unavailable_tools(tasks)
        self._model = config.make_model()
        self._pool = config.make_pool([task.container_image for task in tasks])
        self._workers = min(config.workers, len(tasks))
        self._queue = deque(tasks)
        self._callbacks = callbacks
        self._has_answered = False
        """Whether the model has given an answer."""
        self._recovery: anyio.Event | None = None
        """Set when the endpoint, which is away now, gives something again; None while it is not away."""
        self._first_answers: list[str | None] = []
        """Of each of the first answers, the calls in it that no parser has read."""
        self._returns: Counter[int] = Counter()
        """How often each prompt returned to the queue because a request of its own failed."""
        self._refusals: list[str] = []
        """Why the endpoint refused a request of a prompt, not all with this key."""
        self._is_probing = False
        """Whether a worker finds out, with its prompt, if the endpoint is back."""

    async def run(self, open_trajectories: Callable[[], Trajectories]) -> BatchResult:
        """Start what is needed, do the work, write the report."""
        started = time.monotonic() - self._result.seconds
        try:
            async with self._pool:
                with open_trajectories() as lines:
                    self._write_settings()
                    if self._callbacks.on_start is not None:
                        self._callbacks.on_start(self._result)
                    try:
                        await self._work(lines)
                    finally:
                        self._result.seconds = time.monotonic() - started
                        self._write_settings()
                        write_report(self._config.out)
        finally:
            if isinstance(self._config.model, str):
                await _close_model(self._model)
        self._result.seconds = time.monotonic() - started
        return self._result

    async def _work(self, lines: Trajectories) -> None:
        try:
            async with anyio.create_task_group() as whole:
                whole.start_soon(self._watch_endpoint)
                async with anyio.create_task_group() as workers:
                    for _ in range(self._workers):
                        workers.start_soon(self._worker, lines)
                if not self._result.kept:  # a parser that fits nothing leaves no record that is kept
                    self._check_first_answers()
                    self._check_refusals(self._result.total)
                whole.cancel_scope.cancel()
        except ExceptionGroup as errors:
            # A full disk, or what the caller's on_record raised: all workers met the same trouble.
            raise _first_error(errors) from None

    async def _watch_endpoint(self) -> None:
        while self._callbacks.on_endpoint is not None and isinstance(self._model, OpenAIModel):
            self._callbacks.on_endpoint(self._model.status)
            await anyio.sleep(_STATUS_INTERVAL_S)

    async def _worker(self, lines: Trajectories) -> None:
        while self._queue and self._result.stopped is None:
            if self._recovery is None:
                await self._work_on_next(lines)
            elif self._is_probing:
                await self._recovery.wait()
            else:
                await self._probe_endpoint(lines)

    async def _probe_endpoint(self, lines: Trajectories) -> None:
        """Work on one prompt after another, with pauses, until the endpoint is back, while the other workers wait."""
        self._is_probing = True
        pause_s = _FIRST_PAUSE_S
        try:
            while self._recovery is not None and self._queue:
                with anyio.move_on_after(pause_s):
                    await self._recovery.wait()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if self._queue:  # others may have taken the last prompt: the endpoint is back then
                    await self._work_on_next(lines)
        finally:
            self._is_probing = False
            self._end_outage()

    async def _work_on_next(self, lines: Trajectories) -> None:
        """Work on a prompt and write its record. It returns to the end of the queue where the endpoint was away for too
        long, but a prompt whose own requests fail each time does so a few times only.
        """
        task = self._queue.popleft()
        rollout = self._config.make_rollout(task)
        result, attempts = await self._attempt(rollout)
        if (outage := find_outage(result)) is not None:
            self._begin_outage(outage.message)
            failing = outage.kind == EndpointFailing.__name__
            if not failing or self._returns[task.index] < self._config.retries:
                self._returns[task.index] += failing
                self._queue.append(task)
                return
        elif result.finish == "model_error":
            self._end_outage()
        record, images = self._make_record(task, rollout, result, attempts + self._returns[task.index])
        with anyio.CancelScope(shield=True):
            await lines.append(record, images)
        self._result.tally.add(record)
        if self._callbacks.on_record is not None:
            self._callbacks.on_record(self._result, record)
        if len(self._first_answers) == _FIRST_ANSWERS:
            self._check_first_answers()
        self._check_refusals(_FIRST_ANSWERS)

    async def _attempt(self, rollout: Rollout) -> tuple[RolloutResult, int]:
        """Work on a prompt, again on another sandbox where infrastructure failed. Return what came of the last attempt
        and the number of attempts. Raises ConfigError when the endpoint refuses every request, not this one alone.
        """
        hooks = Hooks(before_call=self._note_answer, on_turn=self._note_turn)
        rollout = replace(rollout, loop={**rollout.loop, "hooks": hooks})
        attempts = 1
        while True:
            result = await rollout.run(self._pool, self._model)
            if (refusal := find_refusal(result)) is not None and refusal.kind == AccessRefused.__name__:
                raise ConfigError(f"the run was stopped, for the model can no longer be used: {refusal.message}")
            if refusal is not None:
                self._refusals.append(refusal.message)
                return result, attempts
            if attempts > self._config.retries or not is_infrastructure_failure(result):
                return result, attempts
            attempts += 1
            logger.info("a prompt is tried again: %s", result.exception or result.cause)

    def _note_answer(self, _: object) -> None:
        self._has_answered = True
        self._end_outage()

    def _note_turn(self, turn: Turn) -> None:
        self._note_answer(turn)
        if len(self._first_answers) < _FIRST_ANSWERS:
            unread = (problem.message for problem in turn.completion.problems if problem.kind == UNREAD_CALLS)
            self._first_answers.append(next(unread, None))

    def _check_first_answers(self) -> None:
        """Raise ConfigError when the first answers all have calls that no parser has read."""
        answers = self._first_answers
        if answers and all(answers):
            raise ConfigError(
                f"the run was stopped after {len(answers)} answers with calls that nothing reads: {answers[0]}; give "
                f"the parser and go on: hermes-exec batch resume {self._config.out} --parser …"
            )

    def _check_refusals(self, first: int) -> None:
        """Raise ConfigError when the endpoint has answered nothing, and refused as many prompts as that."""
        refusals = self._refusals
        if refusals and len(refusals) >= first and not (self._has_answered or self._result.kept):
            raise ConfigError(
                f"the run was stopped, for the model cannot be used: prompts refused: {len(refusals)}, answered: none; "
                f"the last refusal: {refusals[-1]}; go on with it: hermes-exec batch resume {self._config.out}"
            )

    def _begin_outage(self, why: str) -> None:
        if self._config.on_outage == "stop" or not self._has_answered:
            self._result.stopped = why
        if self._recovery is None:
            self._recovery = anyio.Event()

    def _end_outage(self) -> None:
        if self._recovery is not None:
            self._recovery.set()
            self._recovery = None

    def _make_record(self, task: Task, rollout: Rollout, result: RolloutResult, attempts: int) -> RecordWithImages:
        """Return the record of a prompt and its images."""
        config = self._config
        return make_record(
            task,
            [{"role": "user", "content": rollout.messages}] if isinstance(rollout.messages, str) else rollout.messages,
            result,
            model=config.model_name,
            toolsets=tuple(rollout.toolsets or ()),
            backend=str(getattr(config.backend, "name", config.backend)),
            image=task.container_image or config.image or "",
            attempts=attempts,
            mask=self._pool.masked,
        )

    def _write_settings(self) -> None:
        result = self._result
        write_settings(self._config, prompts=result.total, records=result.records, seconds=result.seconds)


def _read_tasks(config: BatchConfig) -> list[Task]:
    tasks = read_dataset(config.dataset, config.limit, config.extra)
    without = [task.name for task in tasks if not select(config.toolsets_of(task)).tools]
    if without and config.distribution is None:
        raise ConfigError(f"no tool of the toolsets {', '.join(config.toolsets) or '(none)'} is available")
    if without:
        raise ConfigError(
            f"the distribution {config.distribution!r} gives no toolset that has a tool here to {len(without)} of "
            f"{len(tasks)} prompts, such as {without[0]}"
        )
    return tasks


def _check_no_results(config: BatchConfig) -> None:
    if config.out.exists() and not config.out.is_dir():
        raise ConfigError(f"out: {config.out} is not a directory")
    if (config.out / TRAJECTORIES).exists() and not config.overwrite:
        raise ConfigError(
            f"out: {config.out} has results of an earlier run; go on with it (hermes-exec batch resume {config.out}), "
            "name another directory, or overwrite them (--overwrite)"
        )


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _close_model(model: Model | SessionModel) -> None:
    """Close a model that this run made."""
    with anyio.move_on_after(5, shield=True):
        for name in ("aclose", "close"):
            close = getattr(model, name, None)
            if close is not None:
                closed = close()
                if inspect.isawaitable(closed):
                    await closed
                return
