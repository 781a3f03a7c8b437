"""Text of notebooks, Word documents and workbooks; bombs and damage are refused."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.files.documents import DocumentError, extract, is_document

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
S = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
P = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'


def archive(**parts: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    return buffer.getvalue()


def docx(body: str, head: str = "") -> bytes:
    return archive(**{"word/document.xml": f"{head}<w:document {W}><w:body>{body}</w:body></w:document>"})


def test_a_notebook_is_shown_cell_by_cell() -> None:
    book = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "text"]},
            {"cell_type": "code", "source": "print(1)", "outputs": [{"text": ["1\n"]}, {"ename": "E", "evalue": "v"}]},
            {"cell_type": "code", "source": "x", "outputs": [{"data": {"text/plain": "7", "image/png": "…"}}]},
        ]
    }
    text = extract("a.ipynb", json.dumps(book).encode())
    assert "# %% [markdown] cell 1\n# Title\ntext" in text
    assert "print(1)\n# output:\n1\n\n# output:\nE: v" in text
    assert "# output:\n7" in text


def test_a_word_document_is_shown_by_paragraphs() -> None:
    heading = '<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>'
    body = "<w:p><w:r><w:t>one</w:t><w:tab/><w:t>two</w:t></w:r></w:p>"
    assert extract("dir/A.DOCX", docx(heading + body)) == "## Head\none\ttwo"


def test_a_paragraph_in_a_text_sandbox_is_a_line() -> None:
    inner = "<w:p><w:r><w:t>in</w:t></w:r></w:p><w:p><w:r><w:t>the sandbox</w:t></w:r></w:p>"
    outer = f"<w:p><w:r><w:t>before</w:t></w:r>{inner}<w:r><w:t>after</w:t></w:r></w:p><w:p/>"
    assert extract("a.docx", docx(outer)) == "before\nin\nthe sandbox\nafter\n"


def xlsx(strings: str, rows: str) -> bytes:
    return archive(
        **{
            "xl/workbook.xml": f'<workbook {S} {R}><sheets><sheet name="First" r:id="r1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships {P}><Relationship Id="r1" Target="a.xml"/></Relationships>',
            "xl/sharedStrings.xml": f"<sst {S}>{strings}</sst>",
            "xl/a.xml": f"<worksheet {S}><sheetData>{rows}</sheetData></worksheet>",
        }
    )


def test_a_workbook_is_shown_by_sheets_and_columns() -> None:
    first = '<row><c r="A1" t="s"><v>0</v></c><c r="C1"><v>3.5</v></c><c r="D1" t="b"><v>1</v></c></row>'
    second = '<row><c r="A2" t="inlineStr"><is><t>in</t></is></c></row>'
    data = xlsx("<si><t>name</t></si>", first + second)
    assert extract("b.xlsx", data) == "# sheet: First\nname\t\t3.5\tTRUE\nin"


def test_a_bomb_is_refused_before_it_is_unpacked_whole() -> None:
    data = docx("<w:p/>" + " " * (60 << 20))
    assert len(data) < 200_000
    with pytest.raises(DocumentError, match="larger than"):
        extract("a.docx", data)


def test_entities_are_refused() -> None:
    head = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    with pytest.raises(DocumentError, match="entities"):
        extract("a.docx", docx("<w:p><w:r><w:t>&b;</w:t></w:r></w:p>", head))
    wide = (head + f"<w:document {W}/>").encode("utf-16")
    with pytest.raises(DocumentError):
        extract("a.docx", archive(**{"word/document.xml": wide}))


GOES_ON = "[the document goes on; only its beginning is shown]"


def test_a_string_that_many_cells_name_is_read_only_as_far_as_text_is_shown() -> None:
    cells = '<c t="s"><v>0</v></c>' * 2_000
    tracemalloc.start()
    text = extract("a.xlsx", xlsx(f"<si><t>{'x' * 1_000_000}</t></si>", f"<row>{cells}</row>"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text.endswith(GOES_ON)
    assert len(text) < 9_000_000
    assert most < 100 << 20


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.docx", docx("<a>" * 5_000 + "</a>" * 5_000), "nested too deeply"),
        ("a.docx", docx("<a " + "".join(f"a{number}='' " for number in range(200_000)) + "/>"), "a tag or text"),
        ("a.xlsx", xlsx(("<si><t>" + "x" * 1_000_000 + "</t></si>") * 9, ""), "more than 8 MiB of strings"),
        ("a.ipynb", b'{"cells":[' + b"[]," * 300_000 + b"1]}", "400,000 commas"),
        ("a.ipynb", b'{"cells":["' + b"x" * (17 << 20) + b'"]}', "larger than 16 MiB"),
        ("a.docx", archive(**{f"part{number}": "" for number in range(3_000)}), "too many parts"),
    ],
)
def test_what_would_take_long_or_much_memory_is_refused(name: str, data: bytes, why: str) -> None:
    tracemalloc.start()
    with pytest.raises(DocumentError, match=why):
        extract(name, data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20


def test_a_document_of_millions_of_elements_is_refused() -> None:
    with pytest.raises(DocumentError, match="more than 2,000,000 elements"):
        extract("a.docx", docx("<w:p>" + "<a/>" * 2_500_000 + "</w:p>"))


@pytest.mark.parametrize("encoding", ["foo", "hex", "rot13", "mbcs", "cp037", "utf-16"])
def test_the_encoding_that_a_part_declares_does_not_matter(encoding: str) -> None:
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'
    assert extract("a.docx", docx("<w:p><w:r><w:t>text</w:t></w:r></w:p>", declared)) == "text"


@pytest.mark.parametrize("offset", [2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_part_at_an_impossible_offset_is_damage(offset: int) -> None:
    data = docx("")
    start, end = data.rfind(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    entry = bytearray(data[start:end])
    entry[30:32], entry[42:46] = struct.pack("<H", 12), b"\xff" * 4
    entry += struct.pack("<HHQ", 1, 8, offset)
    tail = bytearray(data[end:])
    tail[12:20] = struct.pack("<II", len(entry), start)
    with pytest.raises(DocumentError):
        extract("a.docx", data[:start] + bytes(entry) + bytes(tail))


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.ipynb"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 broken", b"{}", b"[]", archive(other="x")])
def test_damage_is_one_error(name: str, data: bytes) -> None:
    with pytest.raises(DocumentError):
        extract(name, data)


@given(st.binary(max_size=300), st.sampled_from(["a.docx", "a.xlsx", "a.ipynb"]))
def test_random_bytes_never_raise_anything_else(data: bytes, name: str) -> None:
    with contextlib.suppress(DocumentError):
        extract(name, data)


@given(st.data())
def test_a_flipped_byte_never_raises_anything_else(data: st.DataObject) -> None:
    good = bytearray(docx("<w:p><w:r><w:t>text</w:t></w:r></w:p>"))
    index = data.draw(st.integers(0, len(good) - 1))
    good[index] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DocumentError):
        extract("a.docx", bytes(good))


def test_only_three_kinds_are_documents() -> None:
    assert all(is_document(name) for name in ("a.docx", "x/b.XLSX", "c.ipynb"))
    assert not any(is_document(name) for name in ("d.txt", "docx", "e.docx.bak"))
