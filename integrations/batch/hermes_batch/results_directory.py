"""The directory of a run: its creation, and the files that follow from its trajectories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_batch.artifacts import remove_artifacts
from hermes_batch.index import TRAJECTORIES
from hermes_batch.monitor import write_final_status
from hermes_batch.parquet import update_parquet
from hermes_batch.report.report import REPORT, write_report
from hermes_batch.result import BatchResult
from hermes_batch.settings import SETTINGS, explain_write_errors
from hermes_batch.status import STATUS
from hermes_batch.trajectories import Trajectories
from hermes_exec import ConfigError


def check_no_results(out: Path, *, overwrite: bool) -> None:
    """Check that a new run may write its results into `out`.

    Raises:
        ConfigError: If there are results, unless `overwrite` is set, or if `out` is not a directory.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out: {out} is not a directory")
    if (out / TRAJECTORIES).exists() and not overwrite:
        raise ConfigError(
            f"out: {out} has results of an earlier run; continue it (hermes-exec batch resume {out}), "
            "use another directory, or overwrite them (--overwrite)"
        )


def create_results(out: Path, *, overwrite: bool) -> Trajectories:
    """Create the files of a new run, in place of the ones of an earlier run if `overwrite` is set.

    Raises:
        ConfigError: As `Trajectories.create` does.
    """
    lines = Trajectories.create(out, overwrite=overwrite)
    for stale in (REPORT, SETTINGS, STATUS):
        (out / stale).unlink(missing_ok=True)
    if overwrite:
        remove_artifacts(out)
    return lines


@asynccontextmanager
async def write_report_at_end(out: Path) -> AsyncIterator[Callable[[], None]]:
    """Write the report when the block has ended, however it ends, if it has called the given function. Sandboxes of the
    block are gone by then: a report of thousands of conversations takes some seconds.

    Raises:
        ExecError: If it cannot be written.
    """
    opened: list[bool] = []
    try:
        yield lambda: opened.append(True)
    finally:
        if opened:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(write_report, out)


async def update_derived_files(result: BatchResult) -> None:
    """Write the status, and the report and the table unless they are up to date, of a run with nothing left to do.

    Raises:
        ExecError: If they cannot be written.
    """
    out = result.out
    with explain_write_errors(out):
        write_final_status(result)
    report = out / REPORT
    if not report.exists() or report.stat().st_mtime_ns < (out / TRAJECTORIES).stat().st_mtime_ns:
        await anyio.to_thread.run_sync(write_report, out)
    await update_parquet(out)
