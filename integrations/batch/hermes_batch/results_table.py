"""The table of results, the table of groups of results, and the line of totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hermes_batch.row_selection import count_tokens
from hermes_batch.run_display import COLORS, name_record
from hermes_batch.status_words import (
    describe_failed_programs,
    describe_outcomes,
    describe_use,
    format_cost,
    format_count,
    to_line,
)
from hermes_batch.tally import Reason, Tally, outcome, program_failure, reason

_REASON_WIDTH = 160
MAX_ROWS = 200


def show_results(
    console: Console,
    records: Sequence[Mapping[str, Any]],
    seconds: float | None,
    total: int,
    until_solved: int | None = None,
) -> None:
    """Print the table of results, with the first 200 rows, and one line of totals."""
    show_rows(console, records)
    tally = Tally()
    for record in records:
        tally.add(record)
    show_totals(console, tally, seconds, total, until_solved)


def show_rows(console: Console, records: Sequence[Mapping[str, Any]], limit: int = MAX_ROWS) -> None:
    """Print the table of the first records, and the reasons of the unscored ones among them."""
    table = _table("prompt", "result", "ended by", "cause")
    visible = records[:limit]
    costs = any(record.get("cost") for record in visible)
    for name in ("turns", "calls", "tokens", *(["cost"] if costs else []), "seconds"):
        table.add_column(name, justify="right")
    table.add_column("isolation")
    reasons = _table("prompt", "unscored because")
    for record in visible:
        word = to_line(outcome(record), 32)
        if word == "unscored":
            reasons.add_row(_cell(name_record(record)), _cell(reason(record), _REASON_WIDTH))
        table.add_row(
            _cell(name_record(record)),
            Text(word, COLORS.get(word, "blue")),
            _cell(_describe_end(record)),
            *(_cell(record.get(name, "")) for name in ("cause", "turns", "tool_calls")),
            format_count(count_tokens(record)),
            *([format_cost(float(record.get("cost", 0)))] if costs else []),
            f"{float(record.get('seconds', 0)):.1f}",
            _cell(record.get("isolation") or "-"),
        )
    console.print(table)
    if len(records) > limit:
        console.print(Text(f"… and {len(records) - limit} more"))
    if reasons.rows:
        console.print(reasons)


def _describe_end(record: Mapping[str, Any]) -> str:
    code = program_failure(record)
    return str(record.get("finish", "")) + ("" if code is None else f", exit code {code}")


def show_groups(
    console: Console,
    groups: Mapping[str, Tally],
    title: str,
    limit: int = MAX_ROWS,
    until_solved: int | None = None,
) -> None:
    """Print a table of groups of records, such as by a field of their metadata. `until_solved` is a setting of the
    run.
    """
    table = _table(title)
    names = ("records", "solved", "share", "unscored", "pass@1", "reward", "calls", "tokens", "cost", "seconds")
    for name in names:
        table.add_column(name, justify="right")
    for value, tally in list(groups.items())[:limit]:
        table.add_row(_cell(value), *summarize_group(tally, until_solved))
    console.print(table)
    if len(groups) > limit:
        console.print(Text(f"… and {len(groups) - limit} more"))


def summarize_group(tally: Tally, until_solved: int | None = None) -> list[str]:
    """Return the figures of a group in the order of the table's columns. Calls, tokens and seconds are means."""
    outcomes, records, estimates = tally.outcomes, max(1, tally.records), tally.groups.summarize(until_solved)
    checked = outcomes["solved"] + outcomes["unsolved"]
    return [
        str(tally.records),
        f"{outcomes['solved']} of {checked}",
        f"{100 * outcomes['solved'] / checked:.0f} %" if checked else "-",
        str(outcomes["unscored"]),
        *(str(estimates.get(name, "-")) for name in ("pass@1", "reward")),
        f"{tally.tool_calls / records:.1f}",
        format_count((tally.prompt_tokens + tally.completion_tokens) // records),
        format_cost(tally.cost) if tally.cost else "-",
        f"{tally.seconds / records:.1f}",
    ]


def list_groups(groups: Mapping[str, Tally], until_solved: int | None = None) -> list[dict[str, Any]]:
    """Return the sums and estimates of groups of records for programs."""
    return [
        {
            "value": value,
            "records": tally.records,
            **tally.outcomes,
            "estimates": {name: estimate._asdict() for name, estimate in tally.groups.summarize(until_solved).items()},
            "tool_calls": tally.tool_calls,
            "prompt_tokens": tally.prompt_tokens,
            "completion_tokens": tally.completion_tokens,
            "cost": tally.cost,
            "seconds": round(tally.seconds, 3),
        }
        for value, tally in groups.items()
    ]


def show_totals(
    console: Console, tally: Tally, seconds: float | None, total: int, until_solved: int | None = None
) -> None:
    """Print one line of totals."""
    console.print(Text(summary_line(tally, seconds, total, until_solved)), highlight=False, soft_wrap=True)


def summary_line(tally: Tally, seconds: float | None, total: int, until_solved: int | None = None) -> str:
    """Return the totals of a run in one line. `until_solved` is a setting of the run."""
    parts = [describe_outcomes(tally.outcomes, _reasons(tally))]
    if tally.groups.most_samples > 1:
        estimates = tally.groups.summarize(until_solved)
        names = [name for name in ("pass@1", f"pass@{tally.groups.most_samples}", "reward") if name in estimates]
        parts += [f"{name} {estimates[name]}" for name in names]
    if tally.failed_programs:
        parts.append(describe_failed_programs(tally.failed_programs))
    parts.append(f"{tally.tool_calls} tool calls")
    if tally.prompt_tokens or tally.completion_tokens:
        parts.append(describe_use(tally.prompt_tokens, tally.completion_tokens, tally.cost))
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    parts.append(f"isolation {to_line(' '.join(sorted(tally.levels)), _REASON_WIDTH) or 'none reached'}")
    if tally.records < total:
        parts.append(f"{total - tally.records} of {total} not done")
    return ", ".join(parts)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name)
    return table


def _reasons(tally: Tally) -> str:
    """Return the errors of a run by their kind, each with the message of the first one."""
    reasons = []
    for kind, count in tally.errors.most_common():
        why = to_line(str(Reason(kind, tally.examples[kind])), _REASON_WIDTH)
        reasons.append(why if len(tally.errors) == 1 else f"{count} {why}")
    return "; ".join(reasons)


def _cell(value: object, width: int = 32) -> Text:
    return Text(to_line(str(value), width))
