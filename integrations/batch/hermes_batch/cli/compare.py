"""`batch compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit.output import emit_json, say, table
from hermes_exec.cli.kit.pools import AsJson

if TYPE_CHECKING:
    from hermes_batch.compare import ComparedPrompt

_MOST_ROWS = 50


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Directory of a run.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Directory of another run.")],
    as_json: AsJson = False,
) -> None:
    """Print the prompts that run A solved and run B did not, and the reverse.

    Prompts are the same if their content is. A prompt is solved if one of its samples is; samples without a score do
    not count.
    """
    from hermes_batch.compare import compare_runs

    result = compare_runs(first, second)
    if as_json:
        emit_json(
            {
                "runs": result.runs,
                "compared": result.compared,
                "solved": result.solved,
                "both": result.both,
                "neither": result.neither,
                "not_compared": result.not_compared,
                "only_first": result.only_first,
                "only_second": result.only_second,
            }
        )
        return
    _print_prompts("solved only in A", result.only_first)
    _print_prompts("solved only in B", result.only_second)
    ours, theirs = result.solved
    say(f"{result.compared} prompts: {ours} solved in A ({first}), {theirs} in B ({second}), {result.both} in both")
    for run, count in zip(result.runs, result.not_compared, strict=True):
        if count:
            say(f"{count} prompts have no score in {run} and are not compared")


def _print_prompts(title: str, prompts: tuple[ComparedPrompt, ...]) -> None:
    if not prompts:
        return
    rows = [(p.id, p.group, *(f"{n} of {of}" for n, of in zip(p.solved, p.scored, strict=True))) for p in prompts]
    table(("prompt", "group", "A solved", "B solved"), rows[:_MOST_ROWS], title=f"{title}: {len(prompts)}")
    if len(rows) > _MOST_ROWS:
        say(f"{len(rows) - _MOST_ROWS} more; --json has all")
