"""The check of a dataset before a run: every check fails on the untouched slot, and passes after the solution."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import anyio
from pydantic import Field

from hermes_agent import CheckFailed, Completion, Message, Rollout, RolloutResult, Verdict
from hermes_agent.rollout import Prepare
from hermes_batch.dataset_config import DatasetConfig
from hermes_batch.failures import find_full_disk, is_infrastructure_failure
from hermes_batch.task import Task
from hermes_exec import ErrorCause, ExecError, ImageError, RunResult, SandboxPool, Slot

_OUTPUT_BYTES = 8192
_ATTEMPTS = 3
_NO_IMAGE = "the image is not available"
_NO_PROGRAM = (126, 127)
"""Exit codes of a shell that cannot run a program."""


@dataclass(frozen=True)
class Fault:
    """A row that is wrong, or that could not be checked.

    Attributes:
        place: The row, such as "line 7".
        id: The id of the prompt, or the name made of its index.
        what: The fault.
        output: What the command printed, shortened, or the error.
        index: The number of the prompt from 0.
    """

    place: str
    id: str
    what: str
    output: str
    index: int = field(repr=False)


@dataclass
class CheckReport:
    """The result of checking a dataset.

    Attributes:
        rows: The number of rows.
        checked: The rows that were checked so far.
        without_check: The rows without a check: only their images, files and set-up were checked.
        without_solution: The rows with a check and no solution: whether their checks can pass is unknown.
        doubtful: The rows without a solution whose check found no program to run. The model may have to write it.
        faulty: The rows that are wrong, in the order of the dataset once all are checked.
        unknown: The rows that could not be checked, because sandboxes failed.
    """

    rows: int
    checked: int = 0
    without_check: int = 0
    without_solution: int = 0
    doubtful: list[Fault] = field(default_factory=list)
    faulty: list[Fault] = field(default_factory=list)
    unknown: list[Fault] = field(default_factory=list)


OnTask = Callable[[CheckReport], None]


class CheckConfig(DatasetConfig):
    """The settings of `check_dataset`. A solution runs at most `solution_timeout_s` seconds."""

    solution_timeout_s: Annotated[float, Field(gt=0)] = 600.0


async def check_dataset(config: CheckConfig, *, on_task: OnTask | None = None) -> CheckReport:
    """Check each row of a dataset in slots of its own, without a model.

    The slot is set up and scored as in a run. First the model does nothing: the check must fail. Then the row's
    `solution` runs instead of a model in another slot: the check must pass. Without a solution, only the first half is
    done; without a check, only the set-up. A scorer of the settings takes the place of the checks.

    Args:
        config: The dataset and its slots.
        on_task: Called after each row.

    Raises:
        ConfigError: If the dataset or the settings are wrong.
        BackendUnavailable: If the backend is not available.
        HostDiskFull: If a disk that all sandboxes need is full.
    """
    checker = _Checker(config, config.read_tasks(), on_task)
    return await checker.run()


class _Finding(NamedTuple):
    """A fault, and the output that shows it."""

    what: str
    output: str


class _Unknown(Exception):
    """Raised when sandboxes failed each time, so that nothing is known about a row."""


class _Checker:
    """Checks the rows, some at a time."""

    def __init__(self, config: CheckConfig, tasks: Sequence[Task], on_task: OnTask | None) -> None:
        self._config, self._on_task = config, on_task
        self._tasks = deque(tasks)
        """The rows that are left."""
        self._report = CheckReport(len(tasks))
        self._bad_images: dict[str, str] = {}
        """Images that are not available, with the error."""

    async def run(self) -> CheckReport:
        """Check all rows."""
        while self._tasks:
            # Without an image of the run, the pool has the image of the first row.
            image = self._tasks[0].container_image
            pool = self._config.make_pool(self._tasks)
            try:
                await self._check_in(pool)
            except ImageError as error:
                if self._config.image is not None or image is None:
                    raise
                self._refuse_image(image, pool.mask(str(error)))
        report = self._report
        for faults in (report.doubtful, report.faulty, report.unknown):
            faults.sort(key=lambda fault: fault.index)
        return report

    async def _check_in(self, pool: SandboxPool) -> None:
        try:
            async with pool, anyio.create_task_group() as workers:
                for _ in range(min(self._config.workers, len(self._tasks))):
                    workers.start_soon(self._work, pool)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work(self, pool: SandboxPool) -> None:
        while self._tasks:
            task = self._tasks.popleft()
            try:
                if (finding := await self._find_fault(pool, task)) is not None:
                    self._report.faulty.append(_make_fault(pool, task, finding))
            except _Unknown as error:
                self._report.unknown.append(_make_fault(pool, task, _Finding("not checked", str(error))))
            self._count(task)

    def _refuse_image(self, image: str, error: str) -> None:
        """Report the rows with an image that is not available."""
        self._bad_images[image] = error
        for task in [task for task in self._tasks if task.container_image == image]:
            self._tasks.remove(task)
            self._report.faulty.append(Fault(task.place, task.name, _NO_IMAGE, error, task.index))
            self._count(task)

    def _count(self, task: Task) -> None:
        report = self._report
        report.checked += 1
        is_scored = self._config.is_scored(task)
        report.without_check += not is_scored
        report.without_solution += is_scored and task.solution is None
        if self._on_task is not None:
            self._on_task(report)

    async def _find_fault(self, pool: SandboxPool, task: Task) -> _Finding | None:
        """Return the fault of a row, or None."""
        image = task.container_image
        if image in self._bad_images:
            return _Finding(_NO_IMAGE, self._bad_images[image])
        rollout = self._config.make_slot_rollout(task)
        result = await self._attempt(pool, rollout, _Solver())
        if isinstance(result.exception, ImageError):
            if result.cause is not ErrorCause.CONFIG:
                raise _Unknown(str(result.exception))  # the registry was away
            if image is not None:
                self._bad_images[image] = str(result.exception)
            return _Finding(_NO_IMAGE, str(result.exception))
        if finding := _explain_failure(result, "on the untouched slot"):
            return finding
        if (verdict := result.verdict) is None:
            return None
        if verdict.solved:
            return _Finding("the check passes on the untouched slot", verdict.output or _describe_verdict(verdict))
        if task.solution is None:
            if verdict.exit_code in _NO_PROGRAM:
                what = f"the check ends with exit code {verdict.exit_code}: does it find its programs?"
                self._report.doubtful.append(_make_fault(pool, task, _Finding(what, verdict.output)))
            return None
        solver = _Solver(task.solution, self._config.solution_timeout_s, task.cwd)
        result = await self._attempt(pool, rollout, solver)
        if finding := _explain_failure(result, "after the solution"):
            return finding
        solved = result.verdict is not None and result.verdict.solved
        return None if solved else _Finding("the check fails after the solution", solver.describe(result))

    async def _attempt(self, pool: SandboxPool, rollout: Rollout, solver: _Solver) -> RolloutResult:
        """Run a rollout, and again on another sandbox if infrastructure failed.

        Raises:
            _Unknown: If it failed each time.
        """
        prepared = replace(rollout, prepare=solver.wrap(rollout.prepare))
        reason: object = ""
        for _ in range(_ATTEMPTS):
            result = await prepared.run(pool, solver)
            if (full := find_full_disk(result)) is not None:
                raise full
            failed = is_infrastructure_failure(result) and not isinstance(result.exception, ImageError)
            if solver.error is None and not failed:
                return result
            reason = solver.error or result.exception or result.cause
        raise _Unknown(str(reason))


class _Solver:
    """A model that runs a command in the slot, if there is one, and answers."""

    def __init__(self, command: str | None = None, timeout_s: float = 0.0, cwd: str | None = None) -> None:
        self._command, self._timeout_s, self._cwd = command, timeout_s, cwd
        self._slot: Slot | None = None
        self._result: RunResult | None = None
        self.error: Exception | None = None
        """The failure of the slot during the command."""

    def wrap(self, prepare: Prepare | None) -> Prepare:
        """Return a `prepare` that gives the slot to this model."""

        async def prepare_slot(slot: Slot) -> None:
            self._slot, self.error = slot, None
            if prepare is not None:
                await prepare(slot)

        return prepare_slot

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Run the command and answer."""
        if self._command is not None:
            assert self._slot is not None
            try:
                self._result = await self._slot.run(
                    self._command,
                    timeout_s=self._timeout_s,
                    cwd=self._cwd,
                    merge_stderr=True,
                    output_limit_bytes=_OUTPUT_BYTES,
                )
            except ExecError as error:
                self.error = error
                raise
        return Completion("done")

    def describe(self, result: RolloutResult) -> str:
        """Return how the check and the command ended, and what they printed."""
        verdict, done = result.verdict, self._result
        lines = [] if verdict is None else [f"check: {_describe_verdict(verdict)}", verdict.output.rstrip()]
        if done is not None:
            end = f"longer than {self._timeout_s:g} s" if done.timed_out else f"exit code {done.exit_code}"
            lines += [f"solution: {end}", done.output.rstrip()]
        return "\n".join(line for line in lines if line)


def _make_fault(pool: SandboxPool, task: Task, finding: _Finding) -> Fault:
    return Fault(task.place, task.name, finding.what, pool.mask(finding.output), task.index)


def _describe_verdict(verdict: Verdict) -> str:
    return f"reward {verdict.reward:g}" if verdict.exit_code is None else f"exit code {verdict.exit_code}"


def _explain_failure(result: RolloutResult, when: str) -> _Finding | None:
    """Return why a rollout has no score although its slot worked, or None."""
    if result.trainable:
        return None
    failure = result.failure
    message = str(result.cause) if failure is None else failure.message
    if isinstance(result.exception, CheckFailed):
        return _Finding(f"the check has no verdict {when}", message)
    if result.cause is ErrorCause.TASK:
        return _Finding("the slot cannot be set up", message)
    return _Finding(f"the row cannot be scored {when}", message)
