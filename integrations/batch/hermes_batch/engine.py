"""The engine of a run: works on samples, some at a time, and writes a record as each one ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from hermes_agent import AccessRefused, EndpointFailing, Model, Rollout, RolloutResult, SessionModel
from hermes_batch.artifacts import artifact_directory, mask_artifacts, remove_directory
from hermes_batch.budget import NO_BUDGET, BudgetGuard, EpisodeSpending, RunBudget
from hermes_batch.endpoint_policy import EndpointPolicy, OnOutage
from hermes_batch.failures import find_full_disk, find_outage, find_refusal, is_infrastructure_failure
from hermes_batch.monitor import OnStatus, RunMonitor
from hermes_batch.parquet import PARQUET
from hermes_batch.program import FirstPrograms
from hermes_batch.record import Record, RecordWithImages, make_record
from hermes_batch.result import BatchResult
from hermes_batch.scorers import FirstScores
from hermes_batch.set_ups import SharedSetUps
from hermes_batch.settings import explain_write_errors
from hermes_batch.trajectories import Trajectories
from hermes_batch.unit_queue import UnitQueue
from hermes_batch.units import Unit
from hermes_exec import ConfigError, HostDiskFull, SandboxPool

OnStart = Callable[[BatchResult], None]
OnRecord = Callable[[BatchResult, Record], None]
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
logger = logging.getLogger(__name__)


class RunCallbacks(NamedTuple):
    """Functions that a run calls as it proceeds."""

    on_start: OnStart | None = None
    on_record: OnRecord | None = None
    on_status: OnStatus | None = None


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The parts of a run: where its samples run, and the origin in their records.

    Attributes:
        out: The directory of the results.
        make_rollout: Returns the rollout of a sample.
        model: The model.
        model_name: The name of the model in the records.
        pool: The pool, which is open while the run works.
        backend: The name of the backend in the records.
        image_of: Returns the image of a sample's slot for its record. Empty: no image.
        workers: How many samples are worked on at a time.
        retries: How often a sample whose slot failed is tried again.
        on_outage: Whether to wait for an endpoint that is down, or to stop.
        budget: The bounds of the run.
        continuation: How to continue the run, for error messages.
        parser_advice: How to set a parser, for error messages.
        write_state: Writes `run.json`.
        shared_groups: The groups whose samples share a set-up.
    """

    out: Path
    make_rollout: Callable[[Unit], Rollout]
    model: Model | SessionModel
    model_name: str
    pool: SandboxPool
    backend: str
    image_of: Callable[[Unit], str]
    workers: int = 4
    retries: int = 2
    on_outage: OnOutage = "wait"
    budget: RunBudget = NO_BUDGET
    continuation: str
    parser_advice: str
    write_state: Callable[[BatchResult], None]
    shared_groups: Collection[str] = ()


class Engine:
    """One invocation of a run: works on the samples of a queue and counts their results."""

    def __init__(self, plan: RunPlan, queue: UnitQueue, result: BatchResult, callbacks: RunCallbacks) -> None:
        self._plan, self._queue, self._result, self._callbacks = plan, queue, result, callbacks
        self._monitor = RunMonitor(plan.out, result, plan.pool, plan.model, callbacks.on_status)
        base_url = str(getattr(plan.model, "base_url", ""))
        self._endpoint = EndpointPolicy(result, plan.on_outage, plan.continuation, plan.parser_advice, base_url)
        self._first_scores = FirstScores(plan.continuation, has_scored=result.kept > 0)
        self._first_programs = FirstPrograms(plan.continuation, has_answers=result.kept > 0)
        self._budget = BudgetGuard(plan.budget, result, self._endpoint.end_outage)
        self._set_ups = SharedSetUps(plan.shared_groups, queue)
        self._returns: Counter[str] = Counter()
        """How often each sample returned to the queue because its own requests failed."""
        self._is_probing = False
        """Whether a worker is testing with its prompt whether the endpoint is back."""

    async def run(self, lines: Trajectories) -> None:
        """Work on the samples."""
        out = self._plan.out
        (out / PARQUET).unlink(missing_ok=True)
        self._plan.write_state(self._result)
        if self._callbacks.on_start is not None:
            self._callbacks.on_start(self._result)
        try:
            await self._work(lines)
        finally:
            with explain_write_errors(out):
                self._monitor.finish()
            self._plan.write_state(self._result)

    async def _work(self, lines: Trajectories) -> None:
        try:
            async with anyio.create_task_group() as whole:
                whole.start_soon(self._monitor.report, self._plan.write_state)
                whole.start_soon(self._budget.watch_time)
                async with anyio.create_task_group() as workers:
                    for _ in range(self._plan.workers):
                        workers.start_soon(self._worker, lines)
                self._budget.check_at_end()
                self._endpoint.check_at_end()
                whole.cancel_scope.cancel()
        except ExceptionGroup as errors:
            # A full disk or an error in the caller's on_record: all workers failed for the same reason.
            raise _first_error(errors) from None

    async def _worker(self, lines: Trajectories) -> None:
        while self._queue and self._result.stopped is None:
            recovery = self._endpoint.recovery
            if recovery is None:
                await self._work_on_next(lines)
            elif self._is_probing:
                await recovery.wait()
            else:
                await self._probe_endpoint(lines)

    async def _probe_endpoint(self, lines: Trajectories) -> None:
        """Work on one sample after another, with pauses, until the endpoint is back. Other workers wait meanwhile."""
        self._is_probing = True
        pause_s = _FIRST_PAUSE_S
        try:
            while (recovery := self._endpoint.recovery) is not None and self._queue:
                with anyio.move_on_after(pause_s):
                    await recovery.wait()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                # Another worker may have taken the last sample, which means that the endpoint is back.
                if self._queue:
                    await self._work_on_next(lines)
        finally:
            self._is_probing = False
            self._endpoint.end_outage()

    async def _work_on_next(self, lines: Trajectories) -> None:
        """Work on a sample and write its record. If the endpoint was down for too long, the sample returns to the end
        of the queue, but a sample whose own requests fail does so only a few times.
        """
        unit = self._queue.pop()
        async with self._set_ups.use(unit.task.group) as shared:
            own = replace(self._plan.make_rollout(unit), shared=shared)
            with self._monitor.watch(unit.key, own) as rollout:
                await self._work_on(unit, rollout, lines)

    async def _work_on(self, unit: Unit, rollout: Rollout, lines: Trajectories) -> None:
        with self._budget.episode() as spending:
            outcome = await self._attempt(rollout, spending)
        if spending.scope.cancelled_caught:
            return
        result, attempts = outcome
        if (outage := find_outage(result)) is not None:
            self._endpoint.begin_outage(outage.message)
            failing = outage.kind == EndpointFailing.__name__
            if not failing or self._returns[unit.key] < self._plan.retries:
                self._returns[unit.key] += failing
                self._queue.put_back(unit)
                return
        elif result.finish == "model_error":
            self._endpoint.note_error("" if result.failure is None else result.failure.message)
        if result.collected.paths:
            await self._mask_artifacts(unit, result)
        record, images = self._make_record(unit, rollout, result, attempts + self._returns[unit.key])
        with anyio.CancelScope(shield=True):
            await lines.append(record, images)
        self._result.tally.add(record)
        self._monitor.note_record()
        self._queue.note_record(record)
        if self._callbacks.on_record is not None:
            self._callbacks.on_record(self._result, record)
        self._endpoint.check()
        self._first_scores.note(result.exception, scored=result.reward is not None)
        self._first_programs.note(result)

    async def _mask_artifacts(self, unit: Unit, result: RolloutResult) -> None:
        directory = self._plan.out / artifact_directory(unit)
        with explain_write_errors(self._plan.out):
            await anyio.to_thread.run_sync(mask_artifacts, directory, result.collected.paths, self._plan.pool.mask)

    async def _attempt(self, rollout: Rollout, spending: EpisodeSpending) -> tuple[RolloutResult, int]:
        """Work on a sample, and retry on another sandbox if infrastructure failed. Return the last result and the
        number of attempts. Raise ConfigError if the endpoint refuses every request, not only this one.
        """
        hooks = self._endpoint.add_hooks(rollout.loop.get("hooks"))
        attempts = 1
        while True:
            if rollout.collect is not None:
                await anyio.to_thread.run_sync(remove_directory, rollout.collect.directory)
            result = await spending.count(rollout, hooks).run(self._plan.pool, self._plan.model)
            spending.settle(result)
            if rollout.program is not None and result.episode is not None:
                self._endpoint.note_program(result.episode)
            if (full := find_full_disk(result)) is not None:
                raise HostDiskFull(f"{full}; then continue the run: {self._plan.continuation}")
            if (refusal := find_refusal(result)) is not None and refusal.kind == AccessRefused.__name__:
                raise ConfigError(f"the run was stopped because the model can no longer be used: {refusal.message}")
            if refusal is not None:
                self._endpoint.note_refusal(refusal.message)
                return result, attempts
            if attempts > self._plan.retries or not is_infrastructure_failure(result):
                return result, attempts
            attempts += 1
            logger.info("retrying a prompt: %s", result.exception or result.cause)

    def _make_record(self, unit: Unit, rollout: Rollout, result: RolloutResult, attempts: int) -> RecordWithImages:
        """Return the record of a sample and its images."""
        return make_record(
            unit,
            [{"role": "user", "content": rollout.messages}] if isinstance(rollout.messages, str) else rollout.messages,
            result,
            model=self._plan.model_name,
            toolsets=tuple(rollout.toolsets or ()),
            program=rollout.program,
            backend=self._plan.backend,
            image=self._plan.image_of(unit),
            attempts=attempts,
            mask=self._plan.pool.mask,
        )


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
