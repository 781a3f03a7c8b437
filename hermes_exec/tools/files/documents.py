"""Text extraction from notebooks, Word documents and workbooks, from bytes that may be hostile."""

from __future__ import annotations

import io
import json
import posixpath
import zipfile
from collections.abc import Callable
from types import MappingProxyType
from xml.etree import ElementTree as ET

MAX_DOCUMENT_BYTES = 32 << 20
"""Larger documents are not read."""

_MAX_NOTEBOOK_BYTES = 16 << 20
_MAX_NOTEBOOK_VALUES = 400_000
_MAX_PART_BYTES = 48 << 20
_MAX_TOKEN_BYTES = 1 << 20
_MAX_PARTS = 2_000
_MAX_EVENTS = 2_000_000
_MAX_DEPTH = 1_000
_CHUNK_BYTES = 256 << 10
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_TEXT_CHARS = 8 << 20
_MAX_COLUMNS = 16_384
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class DocumentError(Exception):
    """The document is damaged, or too large once unpacked; the message explains which."""


class _LimitReached(Exception):
    """The document is longer than the limit. The text up to here is used."""


class _BoundedText:
    """The extracted text, with a limit on its length."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._left = _MAX_TEXT_CHARS

    def add(self, piece: str) -> None:
        self._text.write(piece[: self._left])
        self._left -= len(piece)
        if self._left < 0:
            raise _LimitReached

    def value(self) -> str:
        return self._text.getvalue()


def is_document(path: str) -> bool:
    """Return whether `extract` can read a file with this name."""
    return _suffix(path) in _READERS


def extract(path: str, data: bytes) -> str:
    """Return the readable text of a document, whose format follows from the file name.

    Raises:
        DocumentError: If the document cannot be read. No other exception is raised, although the parsers may raise any
            on hostile bytes.
    """
    text = _BoundedText()
    try:
        _READERS[_suffix(path)](data, text)
    except DocumentError:
        raise
    except _LimitReached:
        if not text.value():
            raise DocumentError(f"the document has more than {_MAX_EVENTS:,} elements") from None
        return text.value() + "\n[the document goes on; only its beginning is shown]"
    except Exception as error:  # noqa: BLE001
        reason = str(error)[:500] or type(error).__name__
        raise DocumentError(f"not a readable .{_suffix(path)} file: {reason}") from None
    return text.value()


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1].removeprefix(".").lower()


def _notebook(data: bytes, text: _BoundedText) -> None:
    if len(data) > _MAX_NOTEBOOK_BYTES:
        raise DocumentError(f"the notebook is larger than {_MAX_NOTEBOOK_BYTES >> 20} MiB")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_NOTEBOOK_VALUES:
        raise DocumentError(f"the notebook has more than {_MAX_NOTEBOOK_VALUES:,} commas and brackets")
    book = json.loads(data.decode("utf-8", "replace"))
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no list of cells")
    between = ""
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict):
            text.add(between)
            _cell(number, cell, text)
            between = "\n\n"


def _cell(number: int, cell: dict[str, object], text: _BoundedText) -> None:
    text.add(f"# %% [{cell.get('cell_type', 'cell')}] cell {number}\n{_join_lines(cell.get('source'))}")
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        output_text = _output(output) if isinstance(output, dict) else ""
        if output_text:
            text.add("\n# output:\n" + output_text)


def _output(output: dict[str, object]) -> str:
    if "text" in output:
        return _join_lines(output["text"])[:20_000]
    if "ename" in output:
        return f"{output.get('ename')}: {output.get('evalue')}"[:20_000]
    data = output.get("data")
    if isinstance(data, dict):
        return _join_lines(data["text/plain"])[:20_000] if "text/plain" in data else f"[{', '.join(data)[:20_000]}]"
    return ""


def _join_lines(source: object) -> str:
    if isinstance(source, list):
        return "".join(str(line) for line in source)
    return "" if source is None else str(source)


class _Part:
    """A parser target for one part of an archive. Subclasses keep the data that they need; nothing else is kept."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._depth = 0
        self.taking = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.taking = False
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DocumentError("the document is nested too deeply")
        self._archive.count()
        self.begin(tag, attributes)

    def end(self, tag: str) -> None:
        self.taking = False
        self._depth -= 1
        self.finish(tag)

    def data(self, text: str) -> None:
        self._archive.count()
        if self.taking:
            self.take(text)

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element. Set `taking` to receive its text up to its first child."""

    def finish(self, tag: str) -> None:
        """Handle the end of an element."""

    def take(self, text: str) -> None:
        """Handle a piece of requested text."""


class _Archive:
    """A zip archive whose parts are read within common limits, whatever their headers claim."""

    def __init__(self, data: bytes) -> None:
        if data.count(b"PK\x01\x02") > _MAX_PARTS:
            raise DocumentError("the document has too many parts")
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._bytes, self._events = _MAX_PART_BYTES, _MAX_EVENTS
        if any(part.compress_type not in _COMPRESSIONS for part in self._zip.infolist()):
            raise DocumentError("the document uses a compression method that is not supported")

    def names(self) -> list[str]:
        return self._zip.namelist()

    def count(self) -> None:
        """Count an element or a piece of text."""
        self._events -= 1
        if self._events < 0:
            raise _LimitReached

    def read(self, name: str, part: _Part) -> None:
        """Read a part as UTF-8, whatever encoding it declares.

        In another encoding, the checks for entity declarations and for long tags would miss them.
        """
        parser = ET.XMLParser(target=part, encoding="utf-8")
        last = b""
        token = 0
        with self._zip.open(name) as source:
            while chunk := source.read(_CHUNK_BYTES):
                self._bytes -= len(chunk)
                if self._bytes < 0:
                    raise DocumentError(f"the document is larger than {_MAX_PART_BYTES >> 20} MiB once unpacked")
                if b"\0" in chunk:
                    raise DocumentError("the document is not UTF-8 text")
                if b"<!DOCTYPE" in last + chunk:
                    raise DocumentError("the document declares XML entities, which are not read")
                token = len(chunk) - at if (at := chunk.rfind(b"<")) >= 0 else token + len(chunk)
                if token > _MAX_TOKEN_BYTES:
                    raise DocumentError(f"a tag or text of the document is larger than {_MAX_TOKEN_BYTES >> 20} MiB")
                last = chunk[-32:]
                parser.feed(chunk)
        parser.close()


def _docx(data: bytes, text: _BoundedText) -> None:
    archive = _Archive(data)
    archive.read("word/document.xml", _Paragraphs(archive, text))


class _Paragraphs(_Part):
    """The paragraphs of a text, one per line. Paragraphs of a text box are nested in a paragraph."""

    def __init__(self, archive: _Archive, text: _BoundedText) -> None:
        super().__init__(archive)
        self._text = text
        self._within = 0
        self._between = self._before = ""

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == f"{_WORD}p":
            self._text.add(self._between)
            self._between, self._before = "\n", ""
            self._within += 1
        elif not self._within:
            return
        elif tag == f"{_WORD}pStyle" and not self._before:
            self._before = _heading(attributes.get(f"{_WORD}val", ""))
        elif tag == f"{_WORD}t":
            self.taking = True
        elif tag == f"{_WORD}tab":
            self.take("\t")
        elif tag in (f"{_WORD}br", f"{_WORD}cr"):
            self.take("\n")

    def take(self, text: str) -> None:
        self._text.add(self._before + text)
        self._before = ""

    def finish(self, tag: str) -> None:
        if tag == f"{_WORD}p":
            self._within -= 1
            self._before = "\n" if self._within else ""


def _heading(style: str) -> str:
    level = style.removeprefix("Heading")
    return "#" * min(int(level), 6) + " " if level != style and level in set("123456789") else ""


def _xlsx(data: bytes, text: _BoundedText) -> None:
    archive = _Archive(data)
    shared = _shared_strings(archive)
    between = ""
    for name, file in _sheet_files(archive):
        text.add(f"{between}# sheet: {name}")
        between = "\n\n"
        archive.read(file, _Rows(archive, shared, text))


class _Strings(_Part):
    """The shared strings of a workbook."""

    def __init__(self, archive: _Archive) -> None:
        super().__init__(archive)
        self.strings: list[str] = []
        self._pieces: list[str] = []
        self._left = _MAX_TEXT_CHARS

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        self.taking = tag == f"{_SHEET}t"

    def take(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise DocumentError(f"the workbook has more than {_MAX_TEXT_CHARS >> 20} MiB of strings")
        self._pieces.append(text)

    def finish(self, tag: str) -> None:
        if tag == f"{_SHEET}si":
            self.strings.append("".join(self._pieces))
            self._pieces = []


def _shared_strings(archive: _Archive) -> list[str]:
    part = _Strings(archive)
    if "xl/sharedStrings.xml" in archive.names():
        archive.read("xl/sharedStrings.xml", part)
    return part.strings


class _Attributes(_Part):
    """The attributes of all elements with one tag."""

    def __init__(self, archive: _Archive, tag: str) -> None:
        super().__init__(archive)
        self._tag = tag
        self.elements: list[dict[str, str]] = []

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == self._tag:
            if len(self.elements) == _MAX_PARTS:
                raise DocumentError("the document has too many parts")
            self.elements.append(attributes)


def _sheet_files(archive: _Archive) -> list[tuple[str, str]]:
    relations = _Attributes(archive, f"{_PACKAGE}Relationship")
    archive.read("xl/_rels/workbook.xml.rels", relations)
    targets = {element.get("Id", ""): element.get("Target", "").removeprefix("/xl/") for element in relations.elements}
    names = set(archive.names())
    sheets = _Attributes(archive, f"{_SHEET}sheet")
    archive.read("xl/workbook.xml", sheets)
    files = [
        (element.get("name", "?"), f"xl/{targets.get(element.get(_RELATION, ''), '')}") for element in sheets.elements
    ]
    return [(name, file) for name, file in files if file in names]


class _Rows(_Part):
    """The rows of a sheet, as lines of cells."""

    def __init__(self, archive: _Archive, shared: list[str], text: _BoundedText) -> None:
        super().__init__(archive)
        self._shared, self._text = shared, text
        self._columns = 0
        self._kind: str | None = None
        self._value = io.StringIO()

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == f"{_SHEET}row":
            self._text.add("\n")
            self._columns = 0
        elif tag == f"{_SHEET}c":
            empty = max(0, _column(attributes.get("r", "")) - self._columns)
            self._text.add("\t" * (empty + (1 if self._columns else 0)))
            self._columns += empty + 1
            self._kind = attributes.get("t")
            self._value = io.StringIO()
        else:
            self.taking = tag == f"{_SHEET}{'t' if self._kind == 'inlineStr' else 'v'}"

    def take(self, text: str) -> None:
        if self._value.tell() < _MAX_TOKEN_BYTES:
            self._value.write(text)

    def finish(self, tag: str) -> None:
        if tag == f"{_SHEET}c":
            self._text.add(self._cell_text(self._value.getvalue()))

    def _cell_text(self, value: str) -> str:
        if self._kind == "s" and len(value) < 10 and value.isdecimal() and int(value) < len(self._shared):
            return self._shared[int(value)]
        if self._kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        return value


def _column(reference: str) -> int:
    column = 0
    for char in reference[:4]:
        if not ("A" <= char <= "Z"):
            break
        column = column * 26 + ord(char) - 64
    return max(0, column - 1) if column <= _MAX_COLUMNS else 0


_READERS: MappingProxyType[str, Callable[[bytes, _BoundedText], None]] = MappingProxyType(
    {"ipynb": _notebook, "docx": _docx, "xlsx": _xlsx}
)
