"""`batch report` and `batch show`."""

from __future__ import annotations

from hermes_batch.cli.arguments import RunDirectory
from hermes_exec.cli.kit.output import emit_json, say, stdout
from hermes_exec.cli.kit.pools import AsJson


def report(out: RunDirectory, as_json: AsJson = False) -> None:
    """Write report.html again from the trajectories of a run."""
    from hermes_batch.report.report import write_report

    path = write_report(out)
    if as_json:
        emit_json({"report": path})
    else:
        say(str(path))


def show(out: RunDirectory, as_json: AsJson = False) -> None:
    """Print the table of results of a run."""
    from hermes_batch.display import show_results
    from hermes_batch.index import TRAJECTORIES
    from hermes_batch.settings import read_settings, read_until_solved
    from hermes_batch.trajectories import read_rows

    rows, broken = read_rows(out)
    settings = read_settings(out)
    total = int(settings.get("prompts") or len(rows))
    if as_json:
        emit_json(rows)
        return
    show_results(stdout(), rows, settings.get("seconds") or None, total, read_until_solved(out))
    if broken:
        say(f"{broken} lines of {TRAJECTORIES} are not records")
