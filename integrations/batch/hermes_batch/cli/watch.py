"""`batch watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import typer

from hermes_batch.cli.arguments import RunDirectory
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say
from hermes_exec.cli.kit.pools import AsJson

if TYPE_CHECKING:
    from hermes_batch.status import RunStatus

_INTERVAL_S = 1.0


def watch(out: RunDirectory, as_json: AsJson = False) -> None:
    """Show the progress of a run that another process works on, until it ends.

    The progress is as new as status.json, which is written every 10 s. With --json, print it once.

    Exit codes: 0 if every sample is done and none is unscored, 3 if not, or if the process of the run is gone.
    """
    from hermes_batch.status import is_working, read_status

    status = read_status(out)
    if as_json:
        emit_json({**status.model_dump(), "working": is_working(out, status)})
        return
    raise typer.Exit(run_async(lambda: _watch(out, status), notice=None))


async def _watch(out: Path, status: RunStatus) -> int:
    from rich.console import Console

    from hermes_batch.run_display import RunDisplay
    from hermes_batch.status import is_working, read_status
    from hermes_batch.status_words import describe_outcomes, describe_progress

    with RunDisplay(Console(stderr=True, highlight=False, emoji=False)) as display:
        display.show_status(status)
        while is_working(out, status):
            await anyio.sleep(_INTERVAL_S)
            status = read_status(out)
            display.show_status(status)
    say(f"{describe_progress(status)}; {describe_outcomes(status.outcomes)}")
    done = status.ended and status.records == status.total
    if not status.ended:
        say(f"the process of the run is gone (its id was {status.pid} on {status.host})")
    elif status.stopped is not None:
        say(f"the run was stopped: {status.stopped}")
    if not done:
        say(f"continue the run: hermes-exec batch resume {out}")
    return exits.OK if done and not status.outcomes.get("unscored") else exits.INFRA
