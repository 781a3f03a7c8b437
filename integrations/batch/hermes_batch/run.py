"""The run: works on the prompts of the file, some at a time, and writes a record as each one ends."""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
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
from hermes_agent.parsers.unread_calls import UNREAD_CALLS
from hermes_batch.artifacts import artifact_directory, mask_artifacts, remove_artifacts, remove_directory
from hermes_batch.config import BatchConfig
from hermes_batch.earlier import EarlierRecords
from hermes_batch.failures import find_full_disk, find_outage, find_refusal, is_infrastructure_failure
from hermes_batch.index import TRAJECTORIES
from hermes_batch.parquet import PARQUET, write_parquet
from hermes_batch.record import Record, RecordWithImages, make_record
from hermes_batch.report.report import REPORT, write_report
from hermes_batch.result import BatchResult
from hermes_batch.settings import SETTINGS, explain_write_errors, read_config, read_settings, write_settings
from hermes_batch.trajectories import Trajectories
from hermes_batch.units import Unit, iterate_units
from hermes_exec import ConfigError, HostDiskFull
from hermes_exec.tools import select

OnStart = Callable[[BatchResult], None]
OnRecord = Callable[[BatchResult, Record], None]
OnEndpoint = Callable[[EndpointStatus], None]
_STATUS_INTERVAL_S = 1.0
_FIRST_ANSWERS = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
logger = logging.getLogger(__name__)


class RunCallbacks(NamedTuple):
    """Functions that a run calls as it proceeds."""

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
    """Work on every sample of every prompt in its own slot, and write the results into `out`.

    These are `trajectories.jsonl`, `index.jsonl`, `report.html` and `run.json`. The first samples of all prompts come
    first, then the second ones.

    The dataset, the model and the pool's settings are checked before anything is started. Each record is on disk before
    the next prompt starts in its place; records are not kept in memory. A cancelled run keeps its records, ends its
    sandboxes and writes the report; `resume_batch` continues it, also after it was killed. Secrets of the pool are
    masked in the records.

    A failure of a single prompt is in its record (`trainable` is False if it may not be scored) after its retries
    (`BatchConfig.retries`). A prompt that waited in vain for an endpoint that is down has no record: it keeps waiting,
    or the run stops (`BatchConfig.on_outage`).

    Args:
        config: The settings of the run.
        on_start: Called when the backend has answered.
        on_record: Called after each record.
        on_endpoint: Called each second with the state of the model's endpoint.

    Raises:
        ConfigError: If the dataset or the settings are wrong, or if `out` already has results. Also during the run: if
            the endpoint refuses the key or its quota is used up; if it answered none of the first eight prompts (or of
            all, if there are fewer) and refused each; or if no parser reads the calls in the first eight answers (or
            all).
        BackendUnavailable: If the backend is not available.
        ImageError: If an image is not available.
        ExecError: If `out` cannot be written, or (HostDiskFull) no sandbox has room on its disk.
    """
    units = _read_units(config)
    _check_no_results(config)

    def create() -> Trajectories:
        lines = Trajectories.create(config.out, overwrite=config.overwrite)
        for stale in (REPORT, SETTINGS):
            (config.out / stale).unlink(missing_ok=True)
        if config.overwrite:
            remove_artifacts(config.out)
        return lines

    callbacks = RunCallbacks(on_start, on_record, on_endpoint)
    return await _Invocation(config, units, BatchResult(config.out, len(units)), callbacks).run(create)


async def resume_batch(
    out: Path,
    *,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_endpoint: OnEndpoint | None = None,
    **changes: Any,
) -> BatchResult:
    """Continue the run in `out` with its original settings.

    Samples that have a result are not repeated, wherever their prompts are in the dataset now. Samples without one come
    first, then those whose record may not be scored (infrastructure, provider, cancelled); the new record replaces the
    old one. Records whose prompts left the dataset or the selection stay. If nothing is left to do, only the report is
    written.

    Args:
        out: The directory of the run.
        on_start: As for `run_batch`.
        on_record: As for `run_batch`.
        on_endpoint: As for `run_batch`.
        changes: Fields of BatchConfig to change from now on, such as `samples`, `limit` or `dataset`. A key, a secret
            or a model object is not stored and must be given again.

    Raises:
        ConfigError: If `out` has no run, if another process works on it, if none of its results belongs to a prompt of
            the dataset, or as `run_batch` does.
    """
    config = read_config(Path(out), **changes)
    units = _read_units(config)
    earlier = EarlierRecords(config.dataset, units)
    with Trajectories.reopen(config.out, earlier.plan_changes) as lines:
        result = earlier.make_result(config.out)
        result.seconds = float(read_settings(config.out).get("seconds") or 0.0)
        remaining = earlier.find_remaining()
        if not remaining:
            write_settings(config, prompts=result.total, records=result.records, seconds=result.seconds)
            if not _is_up_to_date(config.out / REPORT):
                write_report(config.out)
            await anyio.to_thread.run_sync(write_parquet, config.out)
            return result
        callbacks = RunCallbacks(on_start, on_record, on_endpoint)
        return await _Invocation(config, remaining, result, callbacks).run(lambda: lines)


class _Invocation:
    """One invocation: works on these samples and counts their results."""

    def __init__(self, config: BatchConfig, units: list[Unit], result: BatchResult, callbacks: RunCallbacks) -> None:
        self._config, self._result = config, result
        result.left_out = config.unavailable_tools(units)
        self._model = config.make_model()
        self._pool = config.make_pool([unit.task for unit in units])
        self._workers = min(config.workers, len(units))
        self._queue = deque(units)
        self._callbacks = callbacks
        self._has_answered = False
        """Whether the model has answered."""
        self._recovery: anyio.Event | None = None
        """Set when the endpoint, which is down now, answers again. None while it is up."""
        self._first_answers: list[str | None] = []
        """For each of the first answers, the calls that no parser has read."""
        self._returns: Counter[str] = Counter()
        """How often each sample returned to the queue because its own requests failed."""
        self._refusals: list[str] = []
        """The reasons why the endpoint refused the requests of single prompts."""
        self._is_probing = False
        """Whether a worker is testing with its prompt whether the endpoint is back."""

    async def run(self, open_trajectories: Callable[[], Trajectories]) -> BatchResult:
        """Open the pool and the file of trajectories, work on the prompts, and write the report and the table."""
        started = time.monotonic() - self._result.seconds
        try:
            async with self._pool:
                with open_trajectories() as lines:
                    (self._config.out / PARQUET).unlink(missing_ok=True)
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
        await anyio.to_thread.run_sync(write_parquet, self._config.out)
        return self._result

    async def _work(self, lines: Trajectories) -> None:
        try:
            async with anyio.create_task_group() as whole:
                whole.start_soon(self._watch_endpoint)
                async with anyio.create_task_group() as workers:
                    for _ in range(self._workers):
                        workers.start_soon(self._worker, lines)
                if not self._result.kept:  # with a wrong parser no record is kept
                    self._check_first_answers()
                    self._check_refusals(self._result.total)
                whole.cancel_scope.cancel()
        except ExceptionGroup as errors:
            # A full disk or an error in the caller's on_record: all workers failed for the same reason.
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
        """Work on one prompt after another, with pauses, until the endpoint is back. Other workers wait meanwhile."""
        self._is_probing = True
        pause_s = _FIRST_PAUSE_S
        try:
            while self._recovery is not None and self._queue:
                with anyio.move_on_after(pause_s):
                    await self._recovery.wait()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                # Another worker may have taken the last prompt, which means that the endpoint is back.
                if self._queue:
                    await self._work_on_next(lines)
        finally:
            self._is_probing = False
            self._end_outage()

    async def _work_on_next(self, lines: Trajectories) -> None:
        """Work on a prompt and write its record. If the endpoint was down for too long, the prompt returns to the end
        of the queue, but a prompt whose own requests fail does so only a few times.
        """
        unit = self._queue.popleft()
        rollout = self._config.make_rollout(unit)
        result, attempts = await self._attempt(rollout)
        if (outage := find_outage(result)) is not None:
            self._begin_outage(outage.message)
            failing = outage.kind == EndpointFailing.__name__
            if not failing or self._returns[unit.key] < self._config.retries:
                self._returns[unit.key] += failing
                self._queue.append(unit)
                return
        elif result.finish == "model_error":
            self._end_outage()
        if result.collected.paths:
            await self._mask_artifacts(unit, result)
        record, images = self._make_record(unit, rollout, result, attempts + self._returns[unit.key])
        with anyio.CancelScope(shield=True):
            await lines.append(record, images)
        self._result.tally.add(record)
        if self._callbacks.on_record is not None:
            self._callbacks.on_record(self._result, record)
        if len(self._first_answers) == _FIRST_ANSWERS:
            self._check_first_answers()
        self._check_refusals(_FIRST_ANSWERS)

    async def _mask_artifacts(self, unit: Unit, result: RolloutResult) -> None:
        directory = self._config.out / artifact_directory(unit)
        with explain_write_errors(self._config.out):
            await anyio.to_thread.run_sync(mask_artifacts, directory, result.collected.paths, self._pool.mask)

    async def _attempt(self, rollout: Rollout) -> tuple[RolloutResult, int]:
        """Work on a prompt, and retry on another sandbox if infrastructure failed. Return the last result and the
        number of attempts. Raise ConfigError if the endpoint refuses every request, not only this one.
        """
        hooks = Hooks(before_call=self._note_answer, on_turn=self._note_turn)
        rollout = replace(rollout, loop={**rollout.loop, "hooks": hooks})
        attempts = 1
        while True:
            if rollout.collect is not None:
                await anyio.to_thread.run_sync(remove_directory, rollout.collect.directory)
            result = await rollout.run(self._pool, self._model)
            if (full := find_full_disk(result)) is not None:
                raise HostDiskFull(f"{full}; then continue the run: hermes-exec batch resume {self._config.out}")
            if (refusal := find_refusal(result)) is not None and refusal.kind == AccessRefused.__name__:
                raise ConfigError(f"the run was stopped because the model can no longer be used: {refusal.message}")
            if refusal is not None:
                self._refusals.append(refusal.message)
                return result, attempts
            if attempts > self._config.retries or not is_infrastructure_failure(result):
                return result, attempts
            attempts += 1
            logger.info("retrying a prompt: %s", result.exception or result.cause)

    def _note_answer(self, _: object) -> None:
        self._has_answered = True
        self._end_outage()

    def _note_turn(self, turn: Turn) -> None:
        self._note_answer(turn)
        if len(self._first_answers) < _FIRST_ANSWERS:
            unread = (problem.message for problem in turn.completion.problems if problem.kind == UNREAD_CALLS)
            self._first_answers.append(next(unread, None))

    def _check_first_answers(self) -> None:
        """Raise ConfigError if the first answers all have calls that no parser has read."""
        answers = self._first_answers
        if answers and all(answers):
            raise ConfigError(
                f"the run was stopped after {len(answers)} answers with calls that no parser reads: {answers[0]}; set "
                f"the parser and continue: hermes-exec batch resume {self._config.out} --parser …"
            )

    def _check_refusals(self, first: int) -> None:
        """Raise ConfigError if the endpoint has answered nothing and refused at least this many prompts."""
        refusals = self._refusals
        if refusals and len(refusals) >= first and not (self._has_answered or self._result.kept):
            raise ConfigError(
                "the run was stopped because the model cannot be used: "
                f"prompts refused: {len(refusals)}, answered: none; the last refusal: {refusals[-1]}; "
                f"continue it: hermes-exec batch resume {self._config.out}"
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

    def _make_record(self, unit: Unit, rollout: Rollout, result: RolloutResult, attempts: int) -> RecordWithImages:
        """Return the record of a sample and its images."""
        config = self._config
        return make_record(
            unit,
            [{"role": "user", "content": rollout.messages}] if isinstance(rollout.messages, str) else rollout.messages,
            result,
            model=config.model_name,
            toolsets=tuple(rollout.toolsets or ()),
            backend=str(getattr(config.backend, "name", config.backend)),
            image=config.image_of(unit.task) or "",
            attempts=attempts,
            mask=self._pool.mask,
        )

    def _write_settings(self) -> None:
        result = self._result
        write_settings(self._config, prompts=result.total, records=result.records, seconds=result.seconds)


def _read_units(config: BatchConfig) -> list[Unit]:
    tasks = config.read_tasks()
    units = [*iterate_units(tasks, config.samples)]
    if config.distribution is None:
        if not select(config.toolsets_of(units[0])).tools:
            raise ConfigError(f"no tool of the toolsets {', '.join(config.toolsets) or '(none)'} is available")
        return units
    without = {unit.task.index: unit.task.name for unit in units if not select(config.toolsets_of(unit)).tools}
    if without:
        raise ConfigError(
            f"the distribution {config.distribution!r} draws no toolset with an available tool for {len(without)} of "
            f"{len(tasks)} prompts, such as {next(iter(without.values()))}"
        )
    return units


def _is_up_to_date(path: Path) -> bool:
    """Return whether a file that follows from the trajectories is newer than they are."""
    return path.exists() and path.stat().st_mtime_ns >= path.with_name(TRAJECTORIES).stat().st_mtime_ns


def _check_no_results(config: BatchConfig) -> None:
    if config.out.exists() and not config.out.is_dir():
        raise ConfigError(f"out: {config.out} is not a directory")
    if (config.out / TRAJECTORIES).exists() and not config.overwrite:
        raise ConfigError(
            f"out: {config.out} has results of an earlier run; continue it (hermes-exec batch resume {config.out}), "
            "use another directory, or overwrite them (--overwrite)"
        )


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _close_model(model: Model | SessionModel) -> None:
    """Close a model that this run created."""
    with anyio.move_on_after(5, shield=True):
        for name in ("aclose", "close"):
            close = getattr(model, name, None)
            if close is not None:
                closed = close()
                if inspect.isawaitable(closed):
                    await closed
                return
