"""Parses a file of prompts, JSON lines or one JSON array, into rows with their line numbers."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

Row = dict[str, object]
_SPACE = re.compile(r"[ \t\n\r]*")


class ParsedRow(NamedTuple):
    """A row, or the error in it."""

    line: int
    row: Row
    error: str = ""


def parse_rows(data: bytes) -> Iterator[ParsedRow]:
    """Yield the rows of a file in their order. A byte order mark and blank lines are ignored.

    A file that begins with `[` is one JSON array of rows on any number of lines; nothing after an invalid element can
    be read. Any other file has one row per line.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.lstrip()[:1] == b"[":
        yield from _rows_of_array(data)
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield _make_row(number, _DECODER.decode(_decode(line)))
        except ValueError as error:
            yield ParsedRow(number, {}, _explain(error))
        except RecursionError:
            yield ParsedRow(number, {}, "is nested too deeply")


def _rows_of_array(data: bytes) -> Iterator[ParsedRow]:
    text, at, line, counted = "", 0, 1, 0
    try:
        text = _decode(data)
        at = _skip_space(text, text.index("[") + 1)
        while text[at : at + 1] != "]":
            line, counted = line + text.count("\n", counted, at), at
            value, end = _DECODER.raw_decode(text, at)
            yield _make_row(line, value)
            at = _skip_space(text, end)
            if text[at : at + 1] == ",":
                at = _skip_space(text, at + 1)
            elif text[at : at + 1] != "]":
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        at = _skip_space(text, at + 1)
        if at < len(text):
            raise json.JSONDecodeError("Extra data after the array", text, at)
    except json.JSONDecodeError as error:
        yield ParsedRow(error.lineno, {}, _explain(error))
    except UnicodeDecodeError as error:
        yield ParsedRow(data.count(b"\n", 0, error.start) + 1, {}, _explain(error))
    except ValueError as error:
        yield ParsedRow(line, {}, _explain(error))
    except RecursionError:
        yield ParsedRow(line, {}, "is nested too deeply")


def _make_row(line: int, value: object) -> ParsedRow:
    return ParsedRow(line, value) if isinstance(value, dict) else ParsedRow(line, {}, "is not a JSON object")


def _decode(data: bytes) -> str:
    return data.decode("utf-8")


def _skip_space(text: str, at: int) -> int:
    """Return the position of the next character that is not JSON whitespace."""
    return space.end() if (space := _SPACE.match(text, at)) else at


def _explain(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start})"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} (column {error.colno})"
    return str(error)


def _reject_duplicates(pairs: list[tuple[str, object]]) -> Row:
    """Raise ValueError for a duplicate key, because it would be unclear which value counts."""
    row: Row = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"has the entry {name!r} twice")
        row[name] = value
    return row


def _parse_number(text: str) -> float:
    """Raise ValueError for a number that neither JSON nor a float can hold: NaN, Infinity, 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"has the number {text}, which a record cannot hold")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_reject_duplicates, parse_constant=_parse_number, parse_float=_parse_number
)
