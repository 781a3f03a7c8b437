"""Batch runs: `run_batch` works on a dataset, and `resume_batch` continues."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from hermes_agent import Model, SessionModel
from hermes_batch.collector import pause_collector
from hermes_batch.config import BatchConfig
from hermes_batch.earlier import EarlierRecords
from hermes_batch.engine import Engine, OnRecord, OnStart, RunCallbacks, RunPlan
from hermes_batch.monitor import OnStatus
from hermes_batch.parquet import update_parquet
from hermes_batch.result import BatchResult
from hermes_batch.results_directory import check_no_results, create_results, update_derived_files, write_report_at_end
from hermes_batch.settings import progress_facts, read_config, write_settings
from hermes_batch.trajectories import Trajectories
from hermes_batch.unit_queue import UnitQueue
from hermes_batch.units import Unit, gather_samples, iterate_units
from hermes_exec import ConfigError
from hermes_exec.tools import select


async def run_batch(
    config: BatchConfig,
    *,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_status: OnStatus | None = None,
) -> BatchResult:
    """Work on every sample of every prompt in its own slot, and write the results into `out`.

    These are `trajectories.jsonl`, `index.jsonl`, `report.html` and `run.json`. The first samples of all prompts come
    first, then the second ones, except with `fork_samples`.

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
        on_status: Called each second with the progress of the run.

    Raises:
        ConfigError: If the dataset or the settings are wrong, or if `out` already has results. Also during the run: if
            the endpoint refuses the key or its quota is used up; if it answered none of the first eight prompts (or of
            all, if there are fewer) and refused each; if no parser reads the calls in the first eight answers (or
            all); or if each of the first eight programs ended without an answer.
        BackendUnavailable: If the backend is not available.
        ImageError: If an image is not available.
        ExecError: If `out` cannot be written, or (HostDiskFull) no sandbox has room on its disk.
    """
    with pause_collector():
        units = _read_units(config)
    check_no_results(config.out, overwrite=config.overwrite)
    result = BatchResult(config.out, len(units))
    create = partial(create_results, config.out, overwrite=config.overwrite)
    return await _work(config, units, {}, result, RunCallbacks(on_start, on_record, on_status), create)


async def resume_batch(
    out: Path,
    *,
    on_start: OnStart | None = None,
    on_record: OnRecord | None = None,
    on_status: OnStatus | None = None,
    **changes: Any,
) -> BatchResult:
    """Continue the run in `out` with its original settings.

    Samples that have a result are not repeated, wherever their prompts are in the dataset now. Samples without one come
    first, then those whose record may not be scored (infrastructure, provider, cancelled); the new record replaces the
    old one. Records whose prompts left the dataset or the selection stay. If nothing is left to do, the report and
    the table are brought up to date.

    Args:
        out: The directory of the run.
        on_start: As for `run_batch`.
        on_record: As for `run_batch`.
        on_status: As for `run_batch`.
        changes: Fields of BatchConfig to change from now on, such as `samples`, `limit` or `dataset`. A key, a secret
            or a model object is not stored and must be given again.

    Raises:
        ConfigError: If `out` has no run, if another process works on it, if none of its results belongs to a prompt of
            the dataset, or as `run_batch` does.
    """
    config = read_config(Path(out), **changes)
    with pause_collector():
        units = _read_units(config)
        earlier = EarlierRecords(config.dataset, units, config.until_solved)
        opened = Trajectories.reopen(config.out, earlier.plan_changes)
    with opened as lines:
        result = earlier.make_result(config.out)
        remaining = earlier.remaining
        if not remaining:
            _write_state(config, result)
            await update_derived_files(result)
            return result
        config.budget.check_rest(result)
        callbacks = RunCallbacks(on_start, on_record, on_status)
        return await _work(config, remaining, earlier.solved, result, callbacks, lambda: lines)


async def _work(
    config: BatchConfig,
    units: list[Unit],
    solved: Mapping[str, int],
    result: BatchResult,
    callbacks: RunCallbacks,
    open_trajectories: Callable[[], Trajectories],
) -> BatchResult:
    """Work on samples in a pool and with a model of the run's own. `solved` counts earlier solved samples by group."""
    result.left_out = config.unavailable_tools(units)
    model = config.make_model()
    pool = config.make_pool([unit.task for unit in units])
    shared_groups = config.find_shared_groups(units, pool)
    queue = UnitQueue(gather_samples(units, shared_groups), result, config.until_solved, solved)
    plan = RunPlan(
        out=config.out,
        make_rollout=config.make_rollout,
        model=model,
        model_name=config.model_name,
        pool=pool,
        backend=str(getattr(config.backend, "name", config.backend)),
        image_of=lambda unit: config.image_of(unit.task) or "",
        workers=min(config.workers, len(units)),
        retries=config.retries,
        on_outage=config.on_outage,
        continuation=f"hermes-exec batch resume {config.out}",
        parser_advice=f"set the parser and continue: hermes-exec batch resume {config.out} --parser …",
        budget=config.budget,
        write_state=partial(_write_state, config),
        shared_groups=shared_groups,
    )
    try:
        async with write_report_at_end(config.out) as note_opened, plan.pool:
            with open_trajectories() as lines:
                note_opened()
                await Engine(plan, queue, result, callbacks).run(lines)
    finally:
        if isinstance(config.model, str):
            await _close_model(model)
    await update_parquet(config.out)
    return result


def _write_state(config: BatchConfig, result: BatchResult) -> None:
    write_settings(config, progress_facts(result))


def _read_units(config: BatchConfig) -> list[Unit]:
    tasks = config.read_tasks()
    units = [*iterate_units(tasks, config.samples)]
    if config.program is not None:
        return units
    if config.distribution is None:
        common = next((unit for unit in units if unit.task.toolsets is None), None)
        if common is not None and not (config.tools or select(config.toolsets_of(common)).tools):
            raise ConfigError(f"no tool of the toolsets {', '.join(config.toolsets) or '(none)'} is available")
        return units
    without = {unit.task.index: unit.task.name for unit in units if not select(config.toolsets_of(unit)).tools}
    if without and not config.tools:
        raise ConfigError(
            f"the distribution {config.distribution!r} draws no toolset with an available tool for {len(without)} of "
            f"{len(tasks)} prompts, such as {next(iter(without.values()))}"
        )
    return units


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
