"""`batch merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hermes_exec.cli.kit.output import emit_json, say
from hermes_exec.cli.kit.pools import AsJson


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New directory for the merged run.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs.")],
    as_samples: Annotated[
        bool,
        typer.Option("--as-samples", help="Keep records of the same prompt and sample as further samples."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge runs, such as the shards of several machines, into one directory.

    Of several records with the same prompt and sample, the first one that may be trained on stays.

    Exit codes: 0 for a merged run, 2 for usage errors, also if no run has a record.
    """
    from hermes_batch.merge import merge_runs

    result = merge_runs(out, runs, as_samples=as_samples)
    if as_json:
        emit_json({**vars(result), "by_run": dict(result.by_run)})
        return
    for run, count in result.by_run.items():
        say(f"{run}: {count} records")
    say(f"{result.out}: {result.records} records, {result.doubles} doubles left out, {result.renumbered} renumbered")
