"""`run_rollouts`: rollouts of any kind, with the durability of batch runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hermes_agent import Model, Rollout, SessionModel
from hermes_batch.artifacts import artifact_directory
from hermes_batch.budget import RunBudget
from hermes_batch.digests import GROUP_DIGITS
from hermes_batch.earlier import EarlierRecords
from hermes_batch.endpoint_policy import OnOutage
from hermes_batch.engine import Engine, OnRecord, OnStart, RunCallbacks, RunPlan
from hermes_batch.index import TRAJECTORIES
from hermes_batch.monitor import OnStatus
from hermes_batch.parquet import update_parquet
from hermes_batch.result import BatchResult
from hermes_batch.results_directory import check_no_results, create_results, update_derived_files, write_report_at_end
from hermes_batch.settings import progress_facts, write_facts
from hermes_batch.task import Task
from hermes_batch.trajectories import Trajectories
from hermes_batch.unit_queue import UnitQueue
from hermes_batch.units import Unit, iterate_units
from hermes_exec import ConfigError, SandboxPool


async def run_rollouts(
    rollouts: Iterable[tuple[str, Rollout]],
    pool: SandboxPool,
    model: Model | SessionModel,
    out: Path | str,
    *,
    samples: int = 1,
    until_solved: int | None = None,
    workers: int = 4,
    retries: int = 2,
    on_outage: OnOutage = "wait",
    budget_cost: float | None = None,
    budget_tokens: int | None = None,
    budget_time_s: float | None = None,
    overwrite: bool = False,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_status: OnStatus | None = None,
) -> BatchResult:
    """Work on each sample of each rollout in a slot of the pool, and write the results into `out`.

    `out` gets the files of a batch run. If it has results, only samples without one are worked on, and then those whose
    record may not be scored: each pair of id and sample has one record, however often the program is killed and run
    again. The id identifies the rollout, whatever its content.

    Args:
        rollouts: Pairs of an id, which must be unique, and a rollout. Files that it collects go below `out/artifacts`.
        pool: The pool. It is opened for the run if it is not open.
        model: The model. It is not closed.
        out: The directory of the results.
        samples: Episodes of each rollout.
        until_solved: How many solved samples of a rollout are enough. None: work on all samples.
        workers: How many samples are worked on at a time.
        retries: How often a sample whose slot failed is tried again.
        on_outage: Whether to wait for an endpoint that is down, or to stop the run.
        budget_cost: The highest cost of all calls with this `out`, as the model reports it. Then the run stops
            (`BatchResult.stopped`) and can be continued. None: no bound.
        budget_tokens: The most tokens of prompts and completions, in the same way.
        budget_time_s: The longest time in seconds, in the same way.
        overwrite: Whether to replace existing results.
        on_start: Called before the first sample.
        on_record: Called after each record.
        on_status: Called each second with the progress of the run.

    Raises:
        ConfigError: If an id is not unique, if there is no rollout, if none of the results in `out` belongs to a
            rollout, if another process works on `out`, if samples are left and nothing of a budget is, or as
            `hermes_batch.run_batch` does while it runs.
        ExecError: If `out` cannot be written, or (HostDiskFull) no sandbox has room on its disk.
    """
    out = Path(out)
    _check_numbers(samples, until_solved, workers, retries)
    budget = RunBudget(budget_cost, budget_tokens, budget_time_s)
    by_group = _group_rollouts(rollouts)
    units = [*iterate_units([task for task, _ in by_group.values()], samples)]
    earlier = EarlierRecords("this call of run_rollouts", units, until_solved)
    model_name = str(getattr(model, "model", type(model).__name__))

    def write_state(result: BatchResult) -> None:
        origin = {"model": model_name, "backend": pool.config.backend, "image": pool.config.image, "rollouts": True}
        write_facts(out, {**origin, **progress_facts(result), "until_solved": until_solved})

    async with AsyncExitStack() as stack:
        note_opened = await stack.enter_async_context(write_report_at_end(out))
        lines = stack.enter_context(_open_results(out, earlier, overwrite=overwrite))
        result = earlier.make_result(out)
        remaining = earlier.remaining
        if not remaining:
            write_state(result)
            await update_derived_files(result)
            return result
        budget.check_rest(result)
        if not pool.is_open:
            await stack.enter_async_context(pool)
        plan = RunPlan(
            out=out,
            make_rollout=lambda unit: _collect_into(out, unit, by_group[unit.task.group][1]),
            model=model,
            model_name=model_name,
            pool=pool,
            backend=pool.config.backend,
            image_of=lambda unit: by_group[unit.task.group][1].image or pool.config.image or "",
            workers=min(workers, len(remaining)),
            retries=retries,
            on_outage=on_outage,
            budget=budget,
            continuation="call run_rollouts again with the same `out`",
            parser_advice="give the model a parser and call run_rollouts again with the same `out`",
            write_state=write_state,
        )
        note_opened()
        queue = UnitQueue(remaining, result, until_solved, earlier.solved)
        await Engine(plan, queue, result, RunCallbacks(on_start, on_record, on_status)).run(lines)
    await update_parquet(out)
    return result


def _check_numbers(samples: int, until_solved: int | None, workers: int, retries: int) -> None:
    for name, value, least in (("samples", samples, 1), ("workers", workers, 1), ("retries", retries, 0)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")
    if until_solved is not None and not 1 <= until_solved <= samples:
        raise ConfigError(f"until_solved must be from 1 to samples ({samples}), not {until_solved}")


def _group_rollouts(rollouts: Iterable[tuple[str, Rollout]]) -> dict[str, tuple[Task, Rollout]]:
    """Return the rollouts by the groups that follow from their ids, each with the task for its records."""
    groups: dict[str, tuple[Task, Rollout]] = {}
    for index, (name, rollout) in enumerate(rollouts):
        group = hashlib.sha256(f"rollout {name}".encode()).hexdigest()[:GROUP_DIGITS]
        if group in groups:
            raise ConfigError(f"two rollouts have the id {name!r}; give each its own, and samples= for more episodes")
        # Not validated as a row of a dataset: the messages are the ones of the rollout.
        task = Task.model_construct(index=index, place=f"rollout {name}", id=name, group=group)
        groups[group] = (task, rollout)
    if not groups:
        raise ConfigError("run_rollouts needs at least one rollout")
    return groups


def _collect_into(out: Path, unit: Unit, rollout: Rollout) -> Rollout:
    """Return the rollout with a directory of its own in `out` for the files that it collects, if any."""
    if rollout.collect is None:
        return rollout
    return replace(rollout, collect=replace(rollout.collect, directory=out / artifact_directory(unit)))


def _open_results(out: Path, earlier: EarlierRecords, *, overwrite: bool) -> Trajectories:
    if overwrite or not (out / TRAJECTORIES).exists():
        check_no_results(out, overwrite=overwrite)
        return create_results(out, overwrite=overwrite)
    return Trajectories.reopen(out, earlier.plan_changes)
