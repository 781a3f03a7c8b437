"""The text of notebooks, Word documents and workbooks, from bytes that may be hostile."""

from __future__ import annotations

import io
import json
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import IO
from xml.etree import ElementTree as ET

MAX_DOCUMENT_BYTES = 32 << 20
"""A larger document is not read."""

_MAX_PART_BYTES = 48 << 20
_MAX_PARTS = 2_000
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_TEXT_CHARS = 8 << 20
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class DocumentError(Exception):
    """Raised for a document that is damaged, or too large once unpacked; the message says which."""


def is_document(path: str) -> bool:
    """True for the file names whose text `extract` can give."""
    return _suffix(path) in _READERS


def extract(path: str, data: bytes) -> str:
    """Return the readable text of a document, chosen by the file's name. Raises DocumentError."""
    try:
        text = _READERS[_suffix(path)](data)
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        struct.error,
        ET.ParseError,
        KeyError,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise DocumentError(f"not a readable .{_suffix(path)} file: {error}") from None
    if len(text) > _MAX_TEXT_CHARS:
        return text[:_MAX_TEXT_CHARS] + "\n[the document goes on; only its beginning is shown]"
    return text


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1].removeprefix(".").lower()


def _notebook(data: bytes) -> str:
    book = json.loads(data.decode("utf-8", "replace"))
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no list of cells")
    return "\n\n".join(_cell(number, cell) for number, cell in enumerate(cells, 1) if isinstance(cell, dict))


def _cell(number: int, cell: dict[str, object]) -> str:
    kind = cell.get("cell_type", "cell")
    parts = [f"# %% [{kind}] cell {number}", _joined(cell.get("source"))]
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        text = _output(output) if isinstance(output, dict) else ""
        if text:
            parts.append("# output:\n" + text)
    return "\n".join(parts)


def _output(output: dict[str, object]) -> str:
    if "text" in output:
        return _joined(output["text"])[:20_000]
    if "ename" in output:
        return f"{output.get('ename')}: {output.get('evalue')}"[:20_000]
    data = output.get("data")
    if isinstance(data, dict):
        return _joined(data["text/plain"])[:20_000] if "text/plain" in data else f"[{', '.join(map(str, data))}]"
    return ""


def _joined(source: object) -> str:
    if isinstance(source, list):
        return "".join(str(line) for line in source)
    return "" if source is None else str(source)


class _Bounded:
    """A part as a file for the parser, counted against the bound of its archive."""

    def __init__(self, part: IO[bytes], archive: _Archive) -> None:
        self._part, self._archive = part, archive
        self._last = b""

    def read(self, size: int = -1, /) -> bytes:
        chunk = self._part.read(size)
        self._archive.left -= len(chunk)
        if self._archive.left < 0:
            raise DocumentError(f"the document is larger than {_MAX_PART_BYTES >> 20} MiB once unpacked")
        if _declares_entities(self._last + chunk):
            raise DocumentError("the document declares XML entities, which are not read")
        self._last = chunk[-32:]
        return chunk


def _declares_entities(data: bytes) -> bool:
    return b"<!DOCTYPE" in data.replace(b"\0", b"")


class _Archive:
    """A zip whose parts are read under one common bound, whatever their headers claim."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self.left = _MAX_PART_BYTES
        if len(self._zip.infolist()) > _MAX_PARTS:
            raise DocumentError("the document has too many parts")
        if any(part.compress_type not in _COMPRESSIONS for part in self._zip.infolist()):
            raise DocumentError("the document is compressed in a way that is not read")

    def names(self) -> list[str]:
        return self._zip.namelist()

    def elements(self, name: str, tag: str) -> Iterator[ET.Element]:
        """Yield the finished elements of one tag. They are emptied afterwards, so that memory stays bounded."""
        with self._zip.open(name) as part:
            source = _Bounded(part, self)
            root = None
            for event, element in ET.iterparse(source, ("start", "end")):
                if event == "start":
                    root = element if root is None else root
                elif element.tag == tag:
                    yield element
                    element.clear()
        if root is None:
            raise ValueError(f"{name} is empty")


def _docx(data: bytes) -> str:
    lines: list[str] = []
    length = 0
    for paragraph in _Archive(data).elements("word/document.xml", f"{_WORD}p"):
        style = paragraph.find(f"{_WORD}pPr/{_WORD}pStyle")
        name = style.get(f"{_WORD}val", "") if style is not None else ""
        text = "".join(_run_text(node) for node in paragraph.iter())
        lines.append(f"{'#' * _heading(name)} {text}" if _heading(name) else text)
        length += len(text) + 1
        if length > _MAX_TEXT_CHARS:
            break
    return "\n".join(lines)


def _heading(style: str) -> int:
    digit = style.removeprefix("Heading")
    return min(int(digit), 6) if style.startswith("Heading") and digit.isdigit() and len(digit) == 1 else 0


def _run_text(node: ET.Element) -> str:
    if node.tag == f"{_WORD}t":
        return node.text or ""
    if node.tag == f"{_WORD}tab":
        return "\t"
    return "\n" if node.tag in (f"{_WORD}br", f"{_WORD}cr") else ""


def _xlsx(data: bytes) -> str:
    archive = _Archive(data)
    shared = _shared_strings(archive)
    files = _sheet_files(archive)
    sections: list[str] = []
    length = 0
    for name, file in files:
        rows = [f"# sheet: {name}"]
        for row in archive.elements(file, f"{_SHEET}row"):
            rows.append("\t".join(_cells(row, shared)))
            length += len(rows[-1]) + 1
            if length > _MAX_TEXT_CHARS:
                return "\n\n".join([*sections, "\n".join(rows)])
        sections.append("\n".join(rows))
    return "\n\n".join(sections)


def _shared_strings(archive: _Archive) -> list[str]:
    if "xl/sharedStrings.xml" not in archive.names():
        return []
    return [
        "".join(text.text or "" for text in item.iter(f"{_SHEET}t"))
        for item in archive.elements("xl/sharedStrings.xml", f"{_SHEET}si")
    ]


def _sheet_files(archive: _Archive) -> list[tuple[str, str]]:
    package = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
    targets = {
        element.get("Id", ""): element.get("Target", "").removeprefix("/xl/")
        for element in archive.elements("xl/_rels/workbook.xml.rels", package)
    }
    known = set(archive.names())
    sheets = [
        (e.get("name", "?"), f"xl/{targets.get(e.get(_RELATION, ''), '')}")
        for e in archive.elements("xl/workbook.xml", f"{_SHEET}sheet")
    ]
    return [(name, file) for name, file in sheets if file in known]


def _cells(row: ET.Element, shared: list[str]) -> list[str]:
    values: list[str] = []
    for cell in row.findall(f"{_SHEET}c"):
        column = _column(cell.get("r", ""))
        while len(values) < min(column, 16_384):
            values.append("")
        values.append(_cell_value(cell, shared))
    return values


def _column(reference: str) -> int:
    column = 0
    for char in reference:
        if not ("A" <= char <= "Z"):
            break
        column = column * 26 + ord(char) - 64
        if column > 16_384:
            return 0
    return max(0, column - 1)


def _cell_value(cell: ET.Element, shared: list[str]) -> str:
    value = cell.findtext(f"{_SHEET}v") or ""
    kind = cell.get("t")
    if kind == "s" and value.isdigit() and int(value) < len(shared):
        return shared[int(value)]
    if kind == "inlineStr":
        return "".join(text.text or "" for text in cell.iter(f"{_SHEET}t"))
    if kind == "b":
        return "TRUE" if value == "1" else "FALSE"
    return value


_READERS: MappingProxyType[str, Callable[[bytes], str]] = MappingProxyType(
    {"ipynb": _notebook, "docx": _docx, "xlsx": _xlsx}
)
