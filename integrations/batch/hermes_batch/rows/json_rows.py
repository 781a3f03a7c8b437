"""Reads rows from JSON lines or one JSON array, piece by piece."""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO

from hermes_batch.rows.row import ParsedRow, Row

_CHUNK_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_GZIP = b"\x1f\x8b"
_LONGEST_TOKEN = 16
"""More characters than an escape or a word such as `false` has: an error so close to the end of a piece may be due to
it.
"""


def read_json(file: BinaryIO) -> Iterator[ParsedRow]:
    """Yield the rows of a file in their order. A byte order mark and blank lines are ignored.

    A file that begins with `[` is one JSON array of rows on any number of lines; nothing after an invalid element can
    be read. Any other file has one row per line.
    """
    number, first = 1, file.readline(_CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
    if first.startswith(_GZIP):
        yield ParsedRow("the file", {}, "is compressed with gzip; unpack it first: gunzip -k FILE")
        return
    while first and not first.strip():
        number, first = number + first.count(b"\n"), file.readline(_CHUNK_BYTES)
    if first.lstrip()[:1] == b"[":
        yield from _read_array(chain([first], iter(partial(file.read, _CHUNK_BYTES), b"")), number)
    elif first:
        whole = first if first.endswith(b"\n") else first + file.readline()
        yield from _read_lines(chain([whole], file), number)


def _read_lines(lines: Iterable[bytes], first: int) -> Iterator[ParsedRow]:
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            yield _make_row(place, _DECODER.decode(line.decode("utf-8").rstrip("\r\n")))
        except UnicodeDecodeError as error:
            yield ParsedRow(place, {}, f"is not UTF-8 (byte {error.start})")
        except json.JSONDecodeError as error:
            yield ParsedRow(place, {}, f"is not JSON: {error.msg} (column {error.colno})")
        except ValueError as error:
            yield ParsedRow(place, {}, _explain_refusal(error, line.decode("utf-8")))
        except RecursionError:
            yield ParsedRow(place, {}, "is nested too deeply")


def _read_array(chunks: Iterator[bytes], line: int) -> Iterator[ParsedRow]:
    text = _ArrayText(chunks, line)
    try:
        text.skip("[")
        while not text.skip("]"):
            place = text.place
            yield _make_row(place, text.decode_value())
            if not text.skip(",") and text.next_character() != "]":
                raise json.JSONDecodeError("Expecting ',' or ']'", text.text, text.at)
        if text.next_character():
            raise json.JSONDecodeError("Extra data after the array", text.text, text.at)
    except json.JSONDecodeError as error:
        text.advance(error.pos)
        yield ParsedRow(text.place, {}, f"is not JSON: {error.msg} (column {text.column})")
    except UnicodeDecodeError as error:
        text.advance(len(text.text))
        line = text.line + error.object.count(b"\n", 0, error.start)
        yield ParsedRow(f"line {line}", {}, "is not UTF-8")
    except ValueError as error:
        yield ParsedRow(text.place, {}, _explain_refusal(error, text.text[text.at :]))
    except RecursionError:
        yield ParsedRow(text.place, {}, "is nested too deeply")


class _ArrayText:
    """The part of an array's text that was read and not yet used, from `at`, which is at `line` and `column`."""

    def __init__(self, chunks: Iterator[bytes], line: int) -> None:
        self._chunks = chunks
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self.text, self.at = "", 0
        self.line, self.column = line, 1

    @property
    def place(self) -> str:
        """The line of `at`."""
        return f"line {self.line}"

    def next_character(self) -> str:
        """Return the next character that is not white space; empty at the end. `at` is then its position."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.advance(space.end() if space else self.at)
            if self.at < len(self.text) or not self._read_more():
                return self.text[self.at : self.at + 1]

    def skip(self, character: str) -> bool:
        """Skip the next character if it is this one, and white space around it. Return whether it was."""
        if self.next_character() != character:
            return False
        self.advance(self.at + 1)
        self.next_character()
        return True

    def decode_value(self) -> object:
        """Return the value at `at`, and move behind it.

        Raises:
            ValueError: If there is none, or it is refused.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                may_be_cut = error.pos >= len(self.text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated")
                if not (may_be_cut and self._read_more()):
                    raise
                continue
            if end == len(self.text) and not isinstance(value, dict) and self._read_more():
                continue  # a number may go on
            self.advance(end)
            return value

    def advance(self, to: int) -> None:
        """Move forward to a position in the text."""
        lines = self.text.count("\n", self.at, to)
        last = self.text.rfind("\n", self.at, to)
        self.column = to - last if lines else self.column + to - self.at
        self.line += lines
        self.at = to

    def _read_more(self) -> bool:
        """Drop the used text and read at least as much as is left. Return whether there was more."""
        parts, size, least = [self.text[self.at :]], 0, len(self.text) - self.at
        try:
            while not self._ended and size <= least:
                chunk = next(self._chunks, b"")
                self._ended = not chunk
                parts.append(self._decoder.decode(chunk, final=self._ended))
                size += len(parts[-1])
        finally:
            if len(parts) > 1 and size:
                self.text, self.at = "".join(parts), 0
        return size > 0


def _make_row(place: str, value: object) -> ParsedRow:
    return ParsedRow(place, value) if isinstance(value, dict) else ParsedRow(place, {}, "is not a JSON object")


class _RefusedValue(ValueError):
    """Raised for a value that is JSON and has no place in a row."""


def _reject_duplicates(pairs: list[tuple[str, object]]) -> Row:
    """Raise _RefusedValue for a duplicate key, because it would be unclear which value counts."""
    row: Row = dict(pairs)
    if len(row) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedValue(f"has the entry {twice!r} twice")
    return row


def _parse_number(text: str) -> float:
    """Raise _RefusedValue for a number that neither JSON nor a float can hold: NaN, Infinity, 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise _RefusedValue(f"has the number {text}, which a record cannot hold")
    return number


def _explain_refusal(error: ValueError, text: str) -> str:
    """Return why the value at the beginning of a text was refused. An error of Python is an integer that is too long
    for it.
    """
    if isinstance(error, _RefusedValue):
        return str(error)
    limit, long = sys.get_int_max_str_digits(), object()
    decoder = json.JSONDecoder(parse_int=lambda number: long if len(number.lstrip("-")) > limit else 0)
    try:
        names = _find_part(decoder.raw_decode(text.lstrip())[0], long)
    except ValueError:  # the end of the text was not read yet
        names = ()
    return f"has an integer of more than {limit} digits" + (f" in the entry {'.'.join(names)!r}" if names else "")


def _find_part(value: object, wanted: object) -> tuple[str, ...] | None:
    """Return the names of the entries that lead to a part of a value, or None."""
    if value is wanted:
        return ()
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = (("", part) for part in value)
    for name, part in parts:
        if (names := _find_part(part, wanted)) is not None:
            return (name, *names) if name else names
    return None


_DECODER = json.JSONDecoder(
    object_pairs_hook=_reject_duplicates, parse_constant=_parse_number, parse_float=_parse_number
)


def decode_json(text: str) -> object:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is not JSON, has a duplicate key or a number that a record cannot hold.
    """
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(_explain_refusal(error, text)) from None
    return value
