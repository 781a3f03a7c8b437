"""`hermes-exec reap`: ends boxes whose owner is gone, those of one run, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, shortened, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Config, Options
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_exec.backends.base import Reaped, ReapFilter


def reap(
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="End the boxes of this run, its owner alive or not.")
    ] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="End the boxes whose owner is gone.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="End every box of this library on this host.")] = False,
    backend: AnyBackend = None,
    config: Config = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """End boxes of this library. Exactly one of --run-id, --orphans and --all says which."""
    if bool(run_id) + orphans + everything != 1:
        raise ConfigError("say which boxes to end: one of --run-id R, --orphans, --all")
    from hermes_exec.backends.base import ReapFilter

    which = ReapFilter(run_id=run_id, orphans=orphans, all=everything)
    raise typer.Exit(run_async(lambda: _reap(which, backend, config, option, as_json)))


async def _reap(
    which: ReapFilter, backend: str | None, config: Path | None, option: list[str] | None, as_json: bool
) -> int:
    from hermes_exec.cli.kit.known_backends import ask_each

    ended: list[Reaped] = await ask_each(backend, config, option, lambda each: each.reap(which))
    if as_json:
        emit_json(ended)
    elif ended:
        table(("backend", "box", "run", "why"), [(r.backend, shortened(r.sandbox), r.run_id, r.reason) for r in ended])
    else:
        say("no such boxes")
    return exits.OK


def add_to(app: typer.Typer) -> None:
    """Add the command `reap`."""
    app.command(epilog="Examples: hermes-exec reap --orphans | hermes-exec reap --run-id nightly-7")(reap)
