"""`batch report` and `batch show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_batch.cli.arguments import RunDirectory
from hermes_exec.cli.kit.output import emit_json, say, stdout
from hermes_exec.cli.kit.pools import AsJson

if TYPE_CHECKING:
    from hermes_batch.row_selection import RowSelection


def report(out: RunDirectory, as_json: AsJson = False) -> None:
    """Write report.html again from the trajectories of a run."""
    from hermes_batch.report.report import write_report

    path = write_report(out)
    if as_json:
        emit_json({"report": path})
    else:
        say(str(path))


def show(
    out: RunDirectory,
    solved: Annotated[bool, typer.Option("--solved", help="Only solved records.")] = False,
    unsolved: Annotated[bool, typer.Option("--unsolved", help="Only unsolved records.")] = False,
    unscored: Annotated[bool, typer.Option("--unscored", help="Only unscored records.")] = False,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Only records without a check.")] = False,
    cause: Annotated[
        str | None, typer.Option("--cause", help="Only records that ended by this cause, such as infra.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="FIGURE", help="Largest first: tokens, seconds, turns, calls or cost."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Print a table of groups: by a column, or by task_metadata.FIELD."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Print at most this many rows (200; with --json, all).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the table of results of a run.

    Several of --solved, --unsolved, --unscored and --unchecked select the records of each.
    """
    from hermes_batch.collector import pause_collector
    from hermes_batch.row_selection import OUTCOMES, RowSelection

    chosen = (solved, unsolved, unscored, unchecked)
    selection = RowSelection([name for name, is_set in zip(OUTCOMES, chosen, strict=True) if is_set], cause, sort)
    with pause_collector():
        _print_results(out, selection, by, limit, as_json=as_json)


def _print_results(out: Path, selection: RowSelection, by: str | None, limit: int | None, *, as_json: bool) -> None:
    from hermes_batch.index import TRAJECTORIES
    from hermes_batch.results_table import MAX_ROWS, list_groups, show_groups, show_rows, show_totals
    from hermes_batch.row_selection import group_rows
    from hermes_batch.settings import read_settings, read_until_solved
    from hermes_batch.tally import Tally
    from hermes_batch.trajectories import read_rows

    rows, broken = read_rows(out)
    selected = selection.apply(rows)
    groups = None if by is None else group_rows(out, selected, by)
    until_solved = read_until_solved(out)
    if as_json:
        emit_json(selected[:limit] if groups is None else list_groups(groups, until_solved)[:limit])
        return
    console, settings, tally = stdout(), read_settings(out), Tally()
    if groups is None:
        show_rows(console, selected, limit or MAX_ROWS)
    else:
        show_groups(console, groups, str(by), limit or MAX_ROWS, until_solved)
    if not selection.selects_all:
        console.print(f"{len(selected)} of {len(rows)} records selected; all:", highlight=False)
    for row in rows:
        tally.add(row)
    total = int(settings.get("prompts") or len(rows))
    show_totals(console, tally, settings.get("seconds") or None, total, until_solved)
    if broken:
        say(f"{broken} lines of {TRAJECTORIES} are not records")
