"""`batch export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import emit_json, say, table
from hermes_exec.cli.kit.pools import AsJson


def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs.")],
    to: Annotated[str, typer.Option("--to", help="Format: openai, sharegpt, atif, hf-trace or parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New directory for the data set.")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Outcome to export: solved, unsolved, unchecked, unscored; repeatable."),
    ] = None,
    min_reward: Annotated[float | None, typer.Option("--min-reward", help="Least reward.")] = None,
    per_prompt: Annotated[
        str | None,
        typer.Option("--per-prompt", metavar="N", help="Records of a prompt: a number, `shortest` or `best`."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Most tokens of a conversation.")] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(
            "--dedupe", help="`prompt`: one record of equal prompts. `first-call`: one of a prompt's equal first calls."
        ),
    ] = None,
    failed_calls: Annotated[
        bool, typer.Option("--failed-calls/--no-failed-calls", help="Whether to export records with failed calls.")
    ] = True,
    reasoning: Annotated[
        bool, typer.Option("--with-reasoning/--without-reasoning", help="Whether to write the model's thinking.")
    ] = True,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="NAME=SHARE", help="Share of a split, by prompt; the rest is `test`."),
    ] = None,
    include_untrainable: Annotated[
        bool, typer.Option("--include-untrainable", help="Export records that do not measure the model, too.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the records of runs as a data set, and the reasons for those that are left out.

    Exit codes: 0 if a record was written, 1 if none was, 2 for wrong arguments, 3 if the disk of --out is full.
    """
    from hermes_batch.export.export import export_records
    from hermes_batch.export.options import parse_splits

    result = export_records(
        runs,
        to=to,
        out=out,
        only=only or (),
        min_reward=min_reward,
        per_prompt=per_prompt,
        max_tokens=max_tokens,
        dedupe=dedupe,
        failed_calls=failed_calls,
        reasoning=reasoning,
        split=parse_splits(split or ()),
        include_untrainable=include_untrainable,
        overwrite=overwrite,
    )
    if as_json:
        emit_json(result)
    else:
        rows: list[tuple[Any, ...]] = [(f"written: {name}", count, "") for name, count in result.splits.items()]
        rows += [(f"left out: {why}", count, result.details[why]) for why, count in result.left_out.items()]
        table(("records", "count", "first reason"), rows)
        estimated = f", {result.estimated} of them estimated" if result.estimated else ""
        say(f"{result.written} of {result.read} records of {result.prompts} prompts, {result.tokens} tokens{estimated}")
    if not result.written:
        say(f"no record is left, so {result.out} was not written")
        raise typer.Exit(exits.FAILED)
    if not as_json:
        say(str(result.out))
