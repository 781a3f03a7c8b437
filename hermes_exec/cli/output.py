"""What the command line prints: JSON for programs, tables and lines for people; only results go to stdout."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stderr() -> Console:
    """Return the console for messages, progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> Console:
    """Return the console for results; wide where it is no terminal, so that no line is broken for a reader."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def say(message: str) -> None:
    """Print one line to stderr."""
    from rich.markup import escape

    stderr().print(escape(message))


def emit_json(value: object) -> None:
    """Print a value as JSON to stdout: dataclasses as objects, bytes as base64."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def printable(text: str) -> str:
    """Return text of which a terminal acts on nothing but line feeds and tabs; other control characters are shown."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    shown = (c if c in "\n\t" or c.isprintable() else _shown(c) for c in lines)
    return "".join(shown)


def _shown(char: str) -> str:
    code = ord(char)
    return chr(0x2400 + code) if code < ord(" ") else f"\\u{code:04x}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table to stdout; a cell that is None is shown as a dash."""
    from rich.markup import escape
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    stdout().print(grid)


def age(seconds: float) -> str:
    """Return a duration in its largest fitting unit, such as `4m`."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"
