"""Text of notebooks, Word documents and workbooks; bombs and damage are refused."""

from __future__ import annotations

import contextlib
import io
import json
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


def test_a_workbook_is_shown_by_sheets_and_columns() -> None:
    relation = '<Relationship Id="r1" Target="worksheets/sheet1.xml"/>'
    first = '<row><c r="A1" t="s"><v>0</v></c><c r="C1"><v>3.5</v></c><c r="D1" t="b"><v>1</v></c></row>'
    second = '<row><c r="A2" t="inlineStr"><is><t>in</t></is></c></row>'
    data = archive(
        **{
            "xl/workbook.xml": f'<workbook {S} {R}><sheets><sheet name="First" r:id="r1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f"<Relationships {P}>{relation}</Relationships>",
            "xl/sharedStrings.xml": f"<sst {S}><si><t>name</t></si></sst>",
            "xl/worksheets/sheet1.xml": f"<worksheet {S}><sheetData>{first}{second}</sheetData></worksheet>",
        }
    )
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
