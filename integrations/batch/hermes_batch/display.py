"""The display of a run: a progress bar on a terminal, plain lines elsewhere, and the table of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hermes_agent.models.endpoint import EndpointStatus
from hermes_batch.record import Record
from hermes_batch.report.html import make_visible
from hermes_batch.result import BatchResult
from hermes_batch.tally import Reason, Tally, outcome, reason

_REASON_WIDTH = 160
_MAX_ROWS = 200
_COLORS = {"solved": "green", "unsolved": "red", "unscored": "yellow"}


class RunDisplay:
    """Shows the progress of one run. A context manager whose `show_start` and `show_record` are callbacks for
    `run_batch`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._bar: Any = None
        self._solved = 0
        self._endpoint = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show_start(self, result: BatchResult) -> None:
        """Show the start of the run, after the backend has answered."""
        if result.left_out:
            self._console.print(Text(f"not available in this package: {', '.join(result.left_out)}"))
        if self._progress is not None:
            self._solved = result.solved
            self._bar = self._progress.add_task("", total=result.total, completed=result.records)
            self._describe()

    def show_endpoint(self, status: EndpointStatus) -> None:
        """Show the state of the model's endpoint on the bar. The model also logs outages."""
        pace = "" if status.rate is None else f"{status.rate:.1f} requests/s, "
        self._endpoint = f"{pace}{status.waiting} waiting"
        if status.away_s is not None:
            reason = _one_line(status.reason, _REASON_WIDTH)
            away = f"{reason} (for {status.away_s:.0f} s)"
            self._endpoint = f"waiting for the endpoint, which completes no requests: {away}"
        self._describe()

    def _describe(self, **more: Any) -> None:
        if self._progress is not None and self._bar is not None:
            text = f"{self._solved} solved" + (f", {self._endpoint}" if self._endpoint else "")
            self._progress.update(self._bar, description=text, **more)

    def show_record(self, result: BatchResult, record: Record) -> None:
        """Show the outcome of a prompt."""
        word = _one_line(outcome(record), 32)
        calls = f"{record['tool_calls']} call{'' if record['tool_calls'] == 1 else 's'}"
        line = f"{word:9} {_one_line(_name(record), 24):24} {calls:8} {record['seconds']:6.1f} s"
        if why := str(reason(record)):
            line += f"  {_one_line(why, _REASON_WIDTH)}"
        if self._progress is not None:
            self._progress.console.print(Text(line, _COLORS.get(word, "blue")), highlight=False)
            self._solved = result.solved
            self._describe(advance=1)
        else:
            counted = f"[{result.records}/{result.total}]"
            self._console.print(Text(f"{counted:8} {line}"), highlight=False, soft_wrap=True)


def show_results(
    console: Console,
    records: Iterable[Mapping[str, Any]],
    seconds: float | None,
    total: int,
    until_solved: int | None = None,
) -> None:
    """Print the table of results and one line of totals. The tables have the first 200 rows."""
    tally = Tally()
    table = _table("prompt", "result", "ended by", "cause")
    for name in ("turns", "calls", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("isolation")
    reasons = _table("prompt", "not scored because")
    for record in records:
        tally.add(record)
        word = _one_line(outcome(record), 32)
        if word == "unscored" and len(reasons.rows) < _MAX_ROWS:
            reasons.add_row(_cell(_name(record)), _cell(reason(record), _REASON_WIDTH))
        if len(table.rows) == _MAX_ROWS:
            continue
        table.add_row(
            _cell(_name(record)),
            Text(word, _COLORS.get(word, "blue")),
            *(_cell(record.get(name, "")) for name in ("finish", "cause", "turns", "tool_calls")),
            f"{float(record.get('seconds', 0)):.1f}",
            _cell(record.get("isolation") or "-"),
        )
    console.print(table)
    if tally.records > _MAX_ROWS:
        console.print(Text(f"… and {tally.records - _MAX_ROWS} more"))
    if reasons.rows:
        console.print(reasons)
    console.print(Text(summary_line(tally, seconds, total, until_solved)), highlight=False, soft_wrap=True)


def _name(record: Mapping[str, Any]) -> str:
    """Return the prompt's id, with the number of the sample after the first one."""
    sample = int(record.get("sample", 0))
    return str(record.get("id", "")) + (f" #{sample}" if sample else "")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name)
    return table


def summary_line(tally: Tally, seconds: float | None, total: int, until_solved: int | None = None) -> str:
    """Return the totals of a run in one line. `until_solved` is a setting of the run."""
    words = tally.words
    parts = [f"{words['solved']} of {tally.records} solved"]
    if words["unscored"]:
        parts.append(f"{words['unscored']} not scored ({_reasons(tally)})")
    if tally.groups.most_samples > 1:
        estimates = tally.groups.summarize(until_solved)
        names = [name for name in ("pass@1", f"pass@{tally.groups.most_samples}", "reward") if name in estimates]
        parts += [f"{name} {estimates[name]}" for name in names]
    parts.append(f"{tally.tool_calls} tool calls")
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    parts.append(f"isolation {_one_line(' '.join(sorted(tally.levels)), _REASON_WIDTH) or 'none reached'}")
    if tally.records < total:
        parts.append(f"{total - tally.records} of {total} not done")
    return ", ".join(parts)


def _reasons(tally: Tally) -> str:
    """Return the errors of a run by their kind, each with the message of the first one."""
    reasons = []
    for kind, count in tally.errors.most_common():
        why = _one_line(str(Reason(kind, tally.examples[kind])), _REASON_WIDTH)
        reasons.append(why if len(tally.errors) == 1 else f"{count} {why}")
    return "; ".join(reasons)


def _cell(value: object, width: int = 32) -> Text:
    return Text(_one_line(str(value), width))


def _one_line(text: str, width: int) -> str:
    """Return the text in one line without control characters, cut to the width."""
    line = make_visible(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= width else line[: width - 1] + "…"
