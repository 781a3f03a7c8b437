"""The commands of `hermes-exec batch`."""

from __future__ import annotations

import typer

from hermes_batch.cli.check import check
from hermes_batch.cli.compare import compare
from hermes_batch.cli.export import export
from hermes_batch.cli.merge import merge
from hermes_batch.cli.results import report, show
from hermes_batch.cli.run import resume, run
from hermes_batch.cli.watch import watch

app = typer.Typer(no_args_is_help=True, help="Runs a file of prompts, each in its own slot.")
app.command("check", epilog="Example: hermes-exec batch check prompts.jsonl -b docker -i python:3.12-slim --workers 8")(
    check
)
app.command("run", epilog="Example: hermes-exec batch run prompts.jsonl --out runs/a --model embedded --workers 8")(run)
app.command("resume", epilog="Example: hermes-exec batch resume runs/a")(resume)
app.command("report", epilog="Example: hermes-exec batch report runs/a")(report)
app.command("show", epilog="Example: hermes-exec batch show runs/a --unsolved --sort tokens")(show)
app.command("watch", epilog="Example: hermes-exec batch watch runs/a")(watch)
app.command("export", epilog="Example: hermes-exec batch export runs/a --to openai --only solved -o data")(export)
app.command("compare", epilog="Example: hermes-exec batch compare runs/a runs/b")(compare)
app.command("merge", epilog="Example: hermes-exec batch merge runs/all runs/shard-*")(merge)
