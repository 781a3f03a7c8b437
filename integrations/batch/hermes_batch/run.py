"""The run: every prompt of the file, some at a time, and a line of results as each one ends."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import anyio

from hermes_agent.models.base import Model
from hermes_batch.config import EMBEDDED, BatchConfig
from hermes_batch.dataset import Task, read_dataset
from hermes_batch.record import Record
from hermes_batch.report import write_report
from hermes_batch.rollout import Rollout
from hermes_exec.errors import ConfigError
from hermes_exec.pool import SandboxPool
from hermes_exec.tools import select

TRAJECTORIES, REPORT, SETTINGS = "trajectories.jsonl", "report.html", "run.json"
_LOG = logging.getLogger(__name__)


@dataclass
class BatchResult:
    """What a run did so far: `records` in the order in which they ended, of `total` prompts."""

    out: Path
    total: int
    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Every prompt has its record."""
        return len(self.records) == self.total

    @property
    def solved(self) -> int:
        """Prompts whose check ended with 0."""
        return sum(record["solved"] is True for record in self.records)

    @property
    def unscored(self) -> int:
        """Prompts that may not be scored: infrastructure, provider, a broken task."""
        return sum(not record["trainable"] for record in self.records)

    @property
    def tool_calls(self) -> int:
        """Tool calls of all prompts."""
        return sum(record["tool_calls"] for record in self.records)


async def run_batch(
    config: BatchConfig,
    *,
    on_start: Callable[[BatchResult], None] | None = None,
    on_record: Callable[[BatchResult, Record], None] | None = None,
) -> BatchResult:
    """Work on every prompt in a slot of its own; write `trajectories.jsonl`, `report.html` and `run.json` into `out`.

    The dataset, the model and the pool's settings are checked before anything is started. Records are written as they
    end, each flushed; a cancelled run keeps those it has, ends its boxes and writes the report of them. Trouble of a
    single prompt is in its record (`trainable` False where it may not be scored). `on_start` is called when the backend
    has answered, `on_record` after each record.

    Raises ConfigError (dataset, settings, an `out` that has results already), BackendUnavailable, ImageError.
    """
    tasks = read_dataset(config.dataset, config.limit)
    if not select(config.toolsets).tools:
        raise ConfigError(f"no tool of the toolsets {', '.join(config.toolsets) or '(none)'} is available")
    _refuse_results(config)
    model, pool = config.make_model(), config.make_pool()
    result = BatchResult(config.out, len(tasks))
    started = time.monotonic()
    try:
        async with pool:
            with _open_trajectories(config) as lines:
                if on_start is not None:
                    on_start(result)
                run = _Run(config, model, pool, iter(tasks), lines, result, on_record)
                try:
                    await run.work()
                finally:
                    result.seconds = time.monotonic() - started
                    _write_settings(config, result)
                    write_report(config.out)
    finally:
        if isinstance(config.model, str):
            await _close(model)
    result.seconds = time.monotonic() - started
    return result


class _Run:
    """What the workers of one run share."""

    def __init__(
        self,
        config: BatchConfig,
        model: Model,
        pool: SandboxPool,
        tasks: Iterator[Task],
        lines: TextIO,
        result: BatchResult,
        on_record: Callable[[BatchResult, Record], None] | None,
    ) -> None:
        self._config, self._model, self._pool = config, model, pool
        self._tasks, self._lines, self._result, self._on_record = tasks, lines, result, on_record

    async def work(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._config.workers, self._result.total)):
                    group.start_soon(self._worker)
        except ExceptionGroup as errors:
            # A full disk, or what the caller's on_record raised: all workers met the same trouble.
            raise errors.exceptions[0] from None

    async def _worker(self) -> None:
        for task in self._tasks:
            record = await Rollout(task, self._config, self._model).run(self._pool)
            # One write a line: what a reader, or a run that was ended, finds is whole.
            self._lines.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace").decode() + "\n")
            self._lines.flush()
            self._result.records.append(record)
            if self._on_record is not None:
                self._on_record(self._result, record)


def _refuse_results(config: BatchConfig) -> None:
    if config.out.exists() and not config.out.is_dir():
        raise ConfigError(f"out: {config.out} is not a directory")
    if (config.out / TRAJECTORIES).exists() and not config.overwrite:
        raise ConfigError(
            f"out: {config.out} has results of an earlier run; name another directory, or overwrite them (--overwrite)"
        )


def _open_trajectories(config: BatchConfig) -> TextIO:
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        for stale in (REPORT, SETTINGS):
            (config.out / stale).unlink(missing_ok=True)
        return (config.out / TRAJECTORIES).open("w" if config.overwrite else "x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"out: cannot write to {config.out}: {error.strerror or error}") from error


def _write_settings(config: BatchConfig, result: BatchResult) -> None:
    """The settings of the run and where it stands; no key is among them."""
    settings = {
        "dataset": str(config.dataset),
        "model": config.model_name,
        "base_url": config.base_url,
        "backend": str(getattr(config.backend, "name", config.backend)),
        "image": config.image,
        "embedded": config.model == EMBEDDED,
        **config.model_dump(mode="json", include={"workers", "max_turns", "toolsets", "temperature", "seed", "limit"}),
        "prompts": result.total,
        "records": len(result.records),
        "seconds": round(result.seconds, 3),
    }
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (config.out / SETTINGS).write_text(text + "\n", encoding="utf-8")


async def _close(model: Model) -> None:
    """Let go of a model that this run made."""
    with anyio.move_on_after(5, shield=True):
        for name in ("aclose", "close"):
            close = getattr(model, name, None)
            if close is not None:
                closed = close()
                if inspect.isawaitable(closed):
                    await closed
                return
