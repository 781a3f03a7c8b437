"""`batch run` and `batch resume`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from hermes_agent.cli.options import (
    ApiKey,
    LoopOptions,
    ModelName,
    ModelOptions,
    Parser,
    Price,
    ToolOption,
    Toolsets,
    WaitOutage,
    flatten_options,
    join_urls,
    parse_price,
)
from hermes_batch.cli.arguments import (
    Dataset,
    Fields,
    RowOptions,
    RunDirectory,
    SelectionOptions,
    parse_fields,
    pool_settings,
    read_prefill,
)
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, say, stdout
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, parse_options, settings_of

if TYPE_CHECKING:
    from hermes_batch.result import BatchResult


@dataclass(frozen=True, repr=False)
class _ModelOptions(ModelOptions):
    wait_outage_s: WaitOutage = 1800.0


@dataclass(frozen=True)
class _RunOptions(RowOptions):
    """Options of a run with the same names and values as in `BatchConfig`."""

    on_outage: Annotated[
        str,
        typer.Option(
            "--on-outage", help="If it is down for longer: keep waiting (`wait`), or `stop` and leave the rest undone."
        ),
    ] = "wait"
    budget_cost: Annotated[
        float | None, typer.Option("--budget-cost", help="Highest cost of the run, as reported or by --price.")
    ] = None
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", min=1, help="Most tokens of the run, prompts and completions.")
    ] = None
    budget_time_s: Annotated[
        float | None, typer.Option("--budget-time", metavar="SECONDS", help="Longest time of the run.")
    ] = None
    retries: Annotated[int, typer.Option("--retries", min=0, help="How often to retry a prompt whose slot failed.")] = 2
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            metavar="NAME|COMMAND",
            help="A harness to run in each slot in place of the agent loop: mini-swe-agent, hermes-agent, claude-code, "
            "codex or script, perhaps with further arguments, or a command with the prompt in place of {task}.",
        ),
    ] = None
    system_prompt: Annotated[str | None, typer.Option("--system-prompt", help="System message before each prompt.")] = (
        None
    )
    ephemeral_system_prompt: Annotated[
        str | None,
        typer.Option("--ephemeral-system-prompt", help="Text after the system message, sent but in no record."),
    ] = None
    prefill: Annotated[
        Path | None,
        typer.Option("--prefill", metavar="FILE", help="JSON list of messages before prompts, sent but in no record."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option("--context", help="Keep requests within --context-tokens: `shorten` or `summarise` old turns."),
    ] = None
    context_tokens: Annotated[
        int | None, typer.Option("--context-tokens", min=1000, help="Longest request, at four characters a token.")
    ] = None
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution",
            help="Distribution to draw each prompt's toolsets from (`hermes-exec tools distributions`).",
        ),
    ] = None
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools", metavar="FILE.py:NAME", help="Host tool made with @tool, or a list of them; may be repeated."
        ),
    ] = None
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Episodes of each prompt. All prompts get the first one first.")
    ] = 1
    fork_samples: Annotated[
        bool,
        typer.Option(
            "--fork-samples/--no-fork-samples",
            help="Set up the slot of a prompt once for its --samples, where slots can be forked. They then come "
            "one after the other.",
        ),
    ] = True
    until_solved: Annotated[
        int | None,
        typer.Option("--until-solved", min=1, help="Stop a prompt after this many solved ones of its --samples."),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampling, if the model supports seeds.")] = (
        None
    )
    collect: Annotated[
        list[str] | None,
        typer.Option(
            "--collect",
            metavar="GLOB",
            help="Files of the working directory to copy to `artifacts/` at the end of each episode. Repeatable.",
        ),
    ] = None
    collect_limit_mb: Annotated[
        int, typer.Option("--collect-limit", metavar="MB", min=1, help="The most MiB to copy of one episode.")
    ] = 256
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing results in --out.")] = False


@flatten_options
def run(
    dataset: Dataset,
    out: Annotated[Path, typer.Option("--out", help="Directory for trajectories.jsonl, report.html and run.json.")],
    model: ModelName,
    endpoint: _ModelOptions,
    loop: LoopOptions,
    run_options: _RunOptions,
    selection: SelectionOptions,
    fields: Fields = None,
    toolset: Toolsets = None,
    tool_option: ToolOption = None,
    backend: Backend = None,
    image: Image = None,
    pool_config: Config = None,
    profile: Profile = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Work on every prompt in its own slot and write the trajectories.

    Continue a run that was interrupted with `batch resume`.

    Exit codes: 0 if every prompt was scored or answered, 2 for usage or configuration errors, 3 if some prompts failed
    for reasons outside the model or were not done because its endpoint was down, the budget used up or the disk of
    --out full, 130 if interrupted.
    """
    from hermes_batch.config import BatchConfig
    from hermes_batch.run import run_batch

    settings: dict[str, Any] = {
        "dataset": dataset,
        "columns": parse_fields(fields),
        "out": out,
        "model": model,
        **endpoint.settings(),
        **loop.settings(),
        **vars(run_options),
        **selection.settings(),
        "tools": tuple(run_options.tools or ()),
        **pool_settings(settings_of(backend, image, pool_config, option, profile)),
        "toolsets": tuple(toolset or ("terminal", "file")),
        "tool_options": parse_options(tool_option),
        "collect": tuple(run_options.collect or ()),
        "prefill": read_prefill(run_options.prefill),
    }
    config = BatchConfig.of(settings)
    raise typer.Exit(run_async(lambda: _run(partial(run_batch, config), as_json)))


def resume(
    out: RunDirectory,
    base_url: Annotated[
        list[str] | None, typer.Option("--base-url", help="Current URL of the endpoint; may be repeated.")
    ] = None,
    api_key: ApiKey = "none",
    parser: Parser = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", min=1, help="Prompts to work on at a time.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Episodes of each prompt from now on.")
    ] = None,
    until_solved: Annotated[
        int | None, typer.Option("--until-solved", min=0, help="Solved samples that are enough from now on (0: all).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Use at most this many prompts from now on (0: all).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="PROMPTS", help="The dataset from now on, such as a longer one.")
    ] = None,
    price: Price = None,
    budget_cost: Annotated[
        float | None, typer.Option("--budget-cost", min=0, help="Highest cost of the run from now on (0: no bound).")
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", min=0, help="Most tokens of the run from now on (0: no bound).")
    ] = None,
    budget_time: Annotated[
        float | None,
        typer.Option("--budget-time", metavar="SECONDS", min=0, help="Longest time of the run (0: no bound)."),
    ] = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run with its original settings, or add samples to a complete one.

    Samples that have a result are not repeated, unless their record may not be scored. Prompts of the dataset may have
    moved, become more or fewer: only prompts whose content has no result run. Options given here replace the original
    ones. A key and secrets are not stored with a run and must be given again. Exit codes are the same as for `batch
    run`.
    """
    from pydantic import SecretStr

    from hermes_batch.run import resume_batch

    limits = {"limit": limit, "until_solved": until_solved, "budget_cost": budget_cost, "budget_tokens": budget_tokens}
    limits |= {"budget_time_s": budget_time}
    overrides: dict[str, Any] = {"base_url": join_urls(base_url), "parser": parser, "workers": workers}
    overrides |= {"samples": samples, "dataset": dataset, "prices": parse_price(price)}
    changes = {name: value for name, value in overrides.items() if value is not None}
    changes |= {name: value or None for name, value in limits.items() if value is not None}
    changes |= pool_settings(parse_options(option))
    work = partial(resume_batch, out, api_key=SecretStr(api_key), **changes)
    raise typer.Exit(run_async(lambda: _run(work, as_json)))


async def _run(work: Callable[..., Awaitable[BatchResult]], as_json: bool) -> int:
    from hermes_batch.index import TRAJECTORIES
    from hermes_batch.parquet import PARQUET
    from hermes_batch.report.report import REPORT
    from hermes_batch.results_table import show_results, summary_line
    from hermes_batch.settings import read_until_solved
    from hermes_batch.trajectories import read_rows

    result = await _display(work)
    until_solved = read_until_solved(result.out)
    files = {"trajectories": result.out / TRAJECTORIES, "report": result.out / REPORT}
    if (table := result.out / PARQUET).exists():  # not without pyarrow
        files["parquet"] = table
    if as_json:
        estimates = result.tally.groups.summarize(until_solved)
        emit_json(
            {
                "prompts": result.total,
                "records": result.records,
                "others": result.others,
                "kept": result.kept,
                "solved": result.solved,
                "unscored": result.unscored,
                "stopped": result.stopped,
                "tool_calls": result.tool_calls,
                "cost": result.spending.cost,
                "tokens": result.spending.tokens,
                "seconds": round(result.seconds, 3),
                **files,
                "summary": summary_line(result.tally, result.seconds, result.total, until_solved),
                "estimates": {name: estimate._asdict() for name, estimate in estimates.items()},
            }
        )
    else:
        show_results(stdout(), read_rows(result.out)[0], result.seconds, result.total, until_solved)
        say("\n".join(map(str, files.values())))
    if result.others:
        say(f"{result.others} records belong to no prompt that is selected now; they stay in {TRAJECTORIES}")
    if result.stopped is not None:
        say(f"the run was stopped: {result.stopped}\ncontinue it: hermes-exec batch resume {result.out}")
    return exits.OK if result.complete and not result.unscored else exits.INFRA


async def _display(work: Callable[..., Awaitable[BatchResult]]) -> BatchResult:
    """Do the work of a run with a display. If it is interrupted, print the totals and how to continue."""
    from rich.console import Console

    from hermes_batch.results_table import summary_line
    from hermes_batch.run_display import RunDisplay
    from hermes_batch.settings import read_until_solved

    started: list[BatchResult] = []

    def on_start(result: BatchResult) -> None:
        started.append(result)
        display.show_start(result)

    try:
        with RunDisplay(Console(stderr=True, highlight=False, emoji=False)) as display:
            return await work(on_start=on_start, on_record=display.show_record, on_status=display.show_status)
    except anyio.get_cancelled_exc_class():
        for result in started:
            say(summary_line(result.tally, result.seconds, result.total, read_until_solved(result.out)))
            say(f"continue the run: hermes-exec batch resume {result.out}")
        raise
