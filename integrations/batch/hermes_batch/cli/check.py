"""`batch check`: check the rows of a dataset before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

import anyio
import typer

from hermes_agent.cli.options import flatten_options
from hermes_batch.cli.arguments import Dataset, Fields, RowOptions, SelectionOptions, parse_fields, pool_settings
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, table
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, settings_of

if TYPE_CHECKING:
    from hermes_batch.dataset_check import CheckConfig, CheckReport, Fault

_OUTPUT_CHARACTERS = 400


@flatten_options
def check(
    dataset: Dataset,
    row_options: RowOptions,
    selection: SelectionOptions,
    fields: Fields = None,
    solution_timeout_s: Annotated[
        float, typer.Option("--solution-timeout", metavar="SECONDS", help="Time limit of a row's `solution` command.")
    ] = 600.0,
    backend: Backend = None,
    image: Image = None,
    pool_config: Config = None,
    profile: Profile = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Check each row in slots of its own, without a model.

    Images must be available and `setup` must work. Each `check` must fail on the untouched slot, and pass after the
    row's `solution`. Rows are scored as in `batch run`.

    Exit codes: 0 if no row is faulty, 1 if some are, 2 for usage or configuration errors, 3 if some rows could not be
    checked, 130 if interrupted.
    """
    from hermes_batch.dataset_check import CheckConfig

    settings: dict[str, Any] = {
        "dataset": dataset,
        "columns": parse_fields(fields),
        "solution_timeout_s": solution_timeout_s,
        **vars(row_options),
        **selection.settings(),
        **pool_settings(settings_of(backend, image, pool_config, option, profile)),
    }
    config = CheckConfig.of(settings)
    raise typer.Exit(run_async(lambda: _check(config, as_json)))


async def _check(config: CheckConfig, as_json: bool) -> int:
    from hermes_batch.dataset_check import check_dataset

    try:
        async with anyio.create_task_group() as tasks:
            with _Progress() as progress:
                tasks.start_soon(progress.log)
                report = await check_dataset(config, on_task=progress.show)
            tasks.cancel_scope.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if as_json:
        emit_json(report)
    else:
        _show(report)
    return exits.FAILED if report.faulty else exits.INFRA if report.unknown else exits.OK


class _Progress:
    """The progress of a check: a bar on a terminal, lines with a clock elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._console = Console(stderr=True, highlight=False, emoji=False)
        self._bar = Progress(console=self._console, transient=True)
        self._row = self._bar.add_task("checking", total=None)
        self._report: CheckReport | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, report: CheckReport) -> None:
        """Show the progress on a terminal."""
        self._report = report
        words = f"{len(report.faulty)} faulty"
        self._bar.update(self._row, total=report.rows, completed=report.checked, description=words)

    async def log(self) -> None:
        """Print the progress every 30 s where there is no terminal."""
        from hermes_batch.run_display import LOG_INTERVAL_S, log_line

        while not self._console.is_terminal:
            await anyio.sleep(LOG_INTERVAL_S)
            log_line(self._console, "no row is checked yet" if self._report is None else _sums(self._report))


def _show(report: CheckReport) -> None:
    """Print the table of rows that are not right, and the sums."""
    faults = [*report.faulty, *report.unknown, *report.doubtful]
    if faults:
        table(("row", "id", "what", "output"), map(_cells, faults))
    say(_sums(report))
    if report.without_solution:
        say(f"without a solution: {report.without_solution} (whether their checks can pass is unknown)")
    if report.without_check:
        say(f"without a check: {report.without_check} (only their slots were set up)")


def _sums(report: CheckReport) -> str:
    rows = str(report.rows) if report.checked == report.rows else f"{report.checked} of {report.rows}"
    return (
        f"rows: {rows}, faulty: {len(report.faulty)}, not checked: {len(report.unknown)}, "
        f"doubtful: {len(report.doubtful)}"
    )


def _cells(fault: Fault) -> tuple[str, str, str, str]:
    output = fault.output.strip()
    end = output if len(output) <= _OUTPUT_CHARACTERS else "…" + output[-_OUTPUT_CHARACTERS:]
    return fault.place, fault.id, fault.what, end
