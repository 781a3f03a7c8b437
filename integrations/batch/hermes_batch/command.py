"""`hermes-exec batch`: run a file of prompts, look at its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr, ValidationError
from rich.console import Console

from hermes_batch.config import BatchConfig
from hermes_batch.display import RunDisplay, show_results, summary_line
from hermes_batch.report import read_records, read_settings, write_report
from hermes_batch.run import REPORT, TRAJECTORIES, run_batch
from hermes_exec.cli import exits
from hermes_exec.cli.interrupt import run_async
from hermes_exec.cli.output import emit_json, say
from hermes_exec.cli.pools import AsJson, Backend, Image, Options, parse_options
from hermes_exec.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Runs a file of prompts, each in a slot of its own.")
_Out = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")]


@app.command("run", epilog="Example: hermes-exec batch run prompts.jsonl --out runs/a --model embedded --workers 8")
def run(
    dataset: Annotated[Path, typer.Argument(metavar="PROMPTS", help="JSONL file with an entry `prompt` in each line.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for trajectories.jsonl, report.html and run.json.")],
    model: Annotated[
        str, typer.Option("--model", "-m", envvar="HERMES_AGENT_MODEL", help="Name of the model, or `embedded`.")
    ],
    base_url: Annotated[
        str | None, typer.Option("--base-url", envvar="OPENAI_BASE_URL", help="Endpoint, such as http://host:8000/v1.")
    ] = None,
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key of the endpoint.", show_default=False)
    ] = "none",
    parser: Annotated[
        str | None, typer.Option("--parser", help="Format of tool calls in plain text, such as hermes.")
    ] = None,
    backend: Backend = None,
    image: Image = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Prompts worked on at a time.")] = 4,
    max_turns: Annotated[int, typer.Option("--max-turns", min=1, help="Completions of an episode.")] = 30,
    toolset: Annotated[
        list[str] | None, typer.Option("--toolset", "-t", help="May be repeated (default: terminal, file).")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option("--system-prompt", help="Told before each prompt.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of one completion.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the first prompts.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the sampling, where the model has seeds.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results that are in --out.")] = False,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Work on every prompt in a slot of its own and write the trajectories.

    Ends with 0 when every prompt was scored or answered, with 3 when some could not be for reasons outside of the
    model.
    """
    settings: dict[str, Any] = {
        "dataset": dataset,
        "out": out,
        "model": model,
        "base_url": base_url,
        "api_key": SecretStr(api_key),
        "parser": parser,
        "backend": backend or "local",
        "image": image,
        "backend_options": parse_options(option),
        "workers": workers,
        "max_turns": max_turns,
        "toolsets": tuple(toolset or ("terminal", "file")),
        "system_prompt": system_prompt,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "limit": limit,
        "seed": seed,
        "overwrite": overwrite,
    }
    try:
        config = BatchConfig(**settings)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(f"{detail['loc'][0]}: {detail['msg']}" for detail in error.errors() if detail["loc"])
        ) from error
    raise typer.Exit(run_async(lambda: _run(config, as_json)))


@app.command("report", epilog="Example: hermes-exec batch report runs/a")
def report(out: _Out) -> None:
    """Write report.html anew from the trajectories of a run."""
    say(str(write_report(out)))


@app.command("show", epilog="Example: hermes-exec batch show runs/a")
def show(out: _Out, as_json: AsJson = False) -> None:
    """Print the table of results of a run."""
    records, broken = read_records(out)
    settings = read_settings(out)
    total = int(settings.get("prompts") or len(records))
    if as_json:
        emit_json([{name: value for name, value in record.items() if name != "conversations"} for record in records])
        return
    show_results(Console(highlight=False), records, settings.get("seconds"), total)
    if broken:
        say(f"{broken} lines of {TRAJECTORIES} are no records")


async def _run(config: BatchConfig, as_json: bool) -> int:
    console = Console(stderr=True, highlight=False)
    with RunDisplay(console) as display:
        result = await run_batch(config, on_start=display.started, on_record=display.done)
    ordered = sorted(result.records, key=lambda record: record["prompt_index"])
    if as_json:
        emit_json(
            {
                "prompts": result.total,
                "records": len(result.records),
                "solved": result.solved,
                "unscored": result.unscored,
                "tool_calls": result.tool_calls,
                "seconds": round(result.seconds, 3),
                "trajectories": config.out / TRAJECTORIES,
                "report": config.out / REPORT,
                "summary": summary_line(ordered, result.seconds, result.total),
            }
        )
    else:
        show_results(Console(highlight=False), ordered, result.seconds, result.total)
        say(f"{config.out / TRAJECTORIES}\n{config.out / REPORT}")
    return exits.INFRA if result.unscored else exits.OK
