"""The directory of a run: its creation, and the files that follow from its trajectories."""

from __future__ import annotations

from pathlib import Path

from hermes_batch.artifacts import remove_artifacts
from hermes_batch.index import TRAJECTORIES
from hermes_batch.parquet import update_parquet
from hermes_batch.report.report import REPORT, write_report
from hermes_batch.settings import SETTINGS
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


async def update_derived_files(out: Path) -> None:
    """Write the report and the table of a run unless they are up to date.

    Raises:
        ExecError: If they cannot be written.
    """
    report = out / REPORT
    if not report.exists() or report.stat().st_mtime_ns < (out / TRAJECTORIES).stat().st_mtime_ns:
        write_report(out)
    await update_parquet(out)
