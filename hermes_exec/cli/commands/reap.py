"""`hermes-exec reap`: ends sandboxes whose owner is gone, the sandboxes of one run, or all."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, shorten_id, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Config, Options
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_exec.backends.base import ReapedSandbox, ReapFilter

TIME_LIMIT_S = 120.0
"""Time limit per backend, where all are queried."""


def reap(
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="End the sandboxes of this run, its owner alive or not.")
    ] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="End the sandboxes whose owner is gone.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="End every sandbox of this library on this host.")] = False,
    backend: AnyBackend = None,
    config: Config = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """End sandboxes of this library, selected by exactly one of --run-id, --orphans and --all.

    Sandboxes that could not be removed before are tried again. Without --backend all backends are queried at once, also
    the backends of a configuration file. A backend that is unavailable, misconfigured, or takes longer than two minutes
    has a row with its error.
    """
    if bool(run_id) + orphans + everything != 1:
        raise ConfigError("choose the sandboxes to end: one of --run-id R, --orphans, --all")
    from hermes_exec.backends.base import ReapFilter

    which = ReapFilter(run_id=run_id, orphans=orphans, all=everything, retry=True)
    raise typer.Exit(run_async(lambda: _reap(which, backend, config, option, as_json)))


async def _reap(
    which: ReapFilter, backend: str | None, config: Path | None, option: list[str] | None, as_json: bool
) -> int:
    from hermes_exec.cli.kit.ending import error_fields
    from hermes_exec.cli.kit.known_backends import BackendAnswer, ask_each, code_of_all, select_backends

    wanted = select_backends(backend, config, option)
    answers: list[BackendAnswer[ReapedSandbox]] = await ask_each(
        wanted, config, option, lambda each: each.reap(which), TIME_LIMIT_S
    )
    rows: list[dict[str, Any]] = []
    for answer in answers:
        if answer.error is not None and answer.in_file:
            rows.append({"backend": answer.name, "sandbox": None, "error": error_fields(answer.error)})
        rows += [{**asdict(ended), "backend": answer.name, "type": ended.backend} for ended in answer.sandboxes]
    if as_json:
        emit_json(rows)
    elif rows:
        table(("backend", "sandbox", "run", "why"), map(_cells, rows))
    else:
        say("no such sandboxes")
    return code_of_all(answers)


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    if row["sandbox"] is None:
        return row["backend"], None, None, f"not asked: {row['error']['kind']}"
    return row["backend"], shorten_id(row["sandbox"]), row["run_id"], row["reason"]


def add_to(app: typer.Typer) -> None:
    """Add the command `reap`."""
    app.command(epilog="Examples: hermes-exec reap --orphans | hermes-exec reap --run-id nightly-7")(reap)
