"""Output of the command line: JSON for programs, tables and lines for people. Only results go to stdout."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def stderr() -> Console:
    """Return the console for messages, progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def stdout() -> Console:
    """Return the console for results; wide if it is not a terminal, so that lines are not broken for a program."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)


def say(message: str) -> None:
    """Print a message to stderr. Control characters in it, such as in a file name from a sandbox, are made visible."""
    from rich.text import Text

    stderr().print(Text(printable(message)))


def emit_json(value: object) -> None:
    """Print a value as JSON to stdout: dataclasses as objects, bytes as base64.

    JSON itself escapes only control characters below space. A terminal also acts on U+007F to U+009F and on marks that
    turn the direction of text, and a lone surrogate cannot be written at all.
    """
    text = json.dumps(value, default=_plain, ensure_ascii=not _writes_all(sys.stdout), indent=2)
    sys.stdout.write("\n".join(map(_escape, text.split("\n"))) + "\n")
    sys.stdout.flush()


def _writes_all(stream: TextIO) -> bool:
    """Check whether a stream can encode every character."""
    return stream.encoding.lower().replace("-", "").startswith("utf")


def _escape(line: str) -> str:
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


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
    """Return a text with control characters made visible, except line feeds and tabs."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c if c in "\n\t" else _make_visible(c) for c in lines)


def one_line(text: str) -> str:
    """Return a name with control characters, line feeds and tabs made visible."""
    return "".join(map(_make_visible, text))


def _make_visible(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < ord(" "):
        return chr(0x2400 + code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class LogHandler(logging.StreamHandler[TextIO]):
    """A handler that writes to the current `sys.stderr`, which a progress bar replaces to keep log lines apart."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


class LogFormatter(logging.Formatter):
    """A formatter that makes control characters visible: log lines quote names and texts from sandboxes."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return printable(super().format(record))


def shorten_id(sandbox: str) -> str:
    """Return the id of a sandbox; of a digest, as much as engines need to identify it."""
    return sandbox[:20] if re.fullmatch("[0-9a-f]{64}", sandbox) else sandbox


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table to stdout. None is shown as a dash; control characters are made visible."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
    stdout().print(grid)


def age(seconds: float) -> str:
    """Return a duration in its largest fitting unit, such as `4m`."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"
