"""`hermes-exec conformance`: runs the conformance suite on a backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, stderr, stdout, table
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, make_pool
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.testing.conformance import Outcome


def conformance(
    backend: Backend = None,
    image: Image = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    only: Annotated[str | None, typer.Option("--only", "-k", help="Only checks whose name contains this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the conformance suite on a backend; the last line is `N passed, N failed, N skipped`.

    Ends with 1 when a check failed.
    """
    # A partial of a module's function can be pickled for the second driver that a check starts.
    factory = partial(make_pool, backend, image, config, profile, option)
    factory()
    raise typer.Exit(run_async(lambda: _run_suite(factory, only, as_json)))


async def _run_suite(factory: Callable[..., SandboxPool], only: str | None, as_json: bool) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hermes_exec.testing.conformance import run_conformance
    from hermes_exec.testing.conformance.registry import all_checks

    outcomes: list[Outcome] = []
    select = None if only is None else [check.name for check in all_checks() if only in check.name]
    if select == []:
        raise ConfigError(f"no check has {only!r} in its name")
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bars, console=stderr(), transient=True, disable=not stderr().is_terminal) as progress:
        bar = progress.add_task("checks", total=len(all_checks()) if select is None else len(select))

        def on_result(outcome: Outcome) -> None:
            outcomes.append(outcome)
            progress.update(bar, advance=1, description=outcome.name)
            if not progress.disable or as_json:
                return
            say(f"{outcome.status:8} {outcome.name}{f': {outcome.reason}' if outcome.reason else ''}")

        report = await run_conformance(factory, on_result=on_result, select=select)
    if as_json:
        emit_json({"outcomes": outcomes, "summary": report.summary()})
    else:
        rows = [(o.status, o.group, o.name, f"{o.duration_s:.2f}", o.reason or o.meaning) for o in outcomes]
        table(("status", "group", "check", "s", "reason or meaning"), rows)
        stdout().print(report.summary(), markup=False)
    return exits.FAILED if report.failed else exits.OK


def add_to(app: typer.Typer) -> None:
    """Add the command `conformance`."""
    app.command(epilog="Example: hermes-exec conformance --backend docker --image debian:12")(conformance)
