"""The display of a run that works: lines that change on a terminal, lines with a clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hermes_batch.record import Record
from hermes_batch.result import BatchResult
from hermes_batch.status import RunStatus
from hermes_batch.status_words import describe_status, format_duration, to_line
from hermes_batch.tally import outcome, program_failure, reason

_REASON_WIDTH = 160
LOG_INTERVAL_S = 30.0
"""How often the progress is printed where there is no terminal."""
COLORS = {"solved": "green", "unsolved": "red", "unscored": "yellow"}


class RunDisplay:
    """Shows the progress of one run. A context manager whose `show_start`, `show_record` and `show_status` are
    callbacks for `run_batch`.

    Args:
        console: The terminal, or the stream without one.
        clock: Returns the time of the day.
    """

    def __init__(self, console: Console, clock: Callable[[], datetime] = datetime.now) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._status: RunStatus | None = None
        self._status_at = 0.0
        self._next_log = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show_start(self, result: BatchResult) -> None:
        """Show the start of the run, after the backend has answered."""
        if result.left_out:
            self._console.print(Text(f"not available in this package: {', '.join(result.left_out)}"))

    def show_status(self, status: RunStatus) -> None:
        """Show the progress: on a terminal at once, elsewhere every 30 s."""
        now = time.monotonic()
        self._next_log = self._next_log or now + LOG_INTERVAL_S
        self._status, self._status_at = status, now
        if self._live is None and now >= self._next_log:
            self._next_log = now + LOG_INTERVAL_S
            log_line(self._console, "; ".join(describe_status(status)), self._clock)

    def show_record(self, result: BatchResult, record: Record) -> None:
        """Show the outcome of a sample of a prompt."""
        word = to_line(outcome(record), 32)
        calls = f"{record['tool_calls']} call{'' if record['tool_calls'] == 1 else 's'}"
        line = f"{word:9} {to_line(name_record(record), 24):24} {calls:8} {record['seconds']:6.1f} s"
        if why := str(reason(record)):
            line += f"  {to_line(why, _REASON_WIDTH)}"
        elif (code := program_failure(record)) is not None:
            line += f"  the program ended with exit code {code}"
        if self._live is not None:
            self._console.print(Text(line, COLORS.get(word, "blue")), highlight=False)
        else:
            counted = f"[{result.records}/{result.total}]"
            log_line(self._console, f"{counted:8} {line}", self._clock)

    def _render(self) -> RenderableType:
        status = self._status
        if status is None:
            return Group(_row(self._spinner, Text("reading the prompts and starting the backend")))
        seconds = status.seconds if status.ended else status.seconds + time.monotonic() - self._status_at
        bar = ProgressBar(total=max(1, status.total), completed=status.records, width=30)
        first = _row(Text(" ") if status.ended else self._spinner, bar, Text(format_duration(seconds)))
        return Group(first, *(Text(f"  {line}") for line in describe_status(status)))


def log_line(console: Console, line: str, clock: Callable[[], datetime] = datetime.now) -> None:
    """Print a line with the time of the day."""
    console.print(Text(f"{clock():%H:%M:%S} {line}"), highlight=False, soft_wrap=True)


def name_record(record: Mapping[str, Any]) -> str:
    """Return the prompt's id, with the number of the sample after the first one."""
    sample = int(record.get("sample", 0))
    return str(record.get("id", "")) + (f" #{sample}" if sample else "")


def _row(*cells: RenderableType) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(*cells)
    return row
