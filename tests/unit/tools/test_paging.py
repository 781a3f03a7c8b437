"""Pages of a file that arrives in chunks."""

from __future__ import annotations

import codecs

from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.files.paging import PageReader, PageText
from hermes_exec.tools.files.textfile import SNIFF_BYTES, decode, is_binary


def page_of(data: bytes, offset: int = 1, limit: int = 500, *, chunk: int = 1 << 20, chars: int = 100_000) -> PageText:
    reader = PageReader(offset, limit, chars, 2_000)
    for start in range(0, max(1, len(data)), chunk):
        reader.feed(data[start : start + chunk])
    return reader.page()


def test_lines_are_numbered() -> None:
    page = page_of(b"one\ntwo\nthree\n")
    assert page.content == "1|one\n2|two\n3|three"
    assert (page.total_lines, page.truncated, page.next_offset) == (3, False, 4)


def test_f5_total_lines_counts_a_last_line_without_newline() -> None:
    assert page_of(b"one\ntwo").total_lines == 2
    assert page_of(b"one\ntwo\n").total_lines == 2
    assert page_of(b"one").total_lines == 1
    assert page_of(b"\n").total_lines == 1
    assert page_of(b"").total_lines == 0


@given(
    st.lists(st.sampled_from(["", "a", "é", "x\r", "\f", "long" * 3]), max_size=12),
    st.booleans(),
    st.integers(1, 14),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_pages_are_the_lines_whatever_the_chunks(
    lines: list[str], final: bool, offset: int, limit: int, chunk: int
) -> None:
    text = "\n".join(lines) + ("\n" if final and lines else "")
    wanted = text.split("\n")
    if wanted[-1] == "":
        wanted.pop()
    page = page_of(text.encode(), offset, limit, chunk=chunk)
    shown = wanted[offset - 1 : offset - 1 + limit]
    assert page.content == "\n".join(f"{offset + i}|{line.removesuffix(chr(13))}" for i, line in enumerate(shown))
    assert page.total_lines == len(wanted)
    assert page.truncated == (bool(shown) and offset - 1 + limit < len(wanted))
    assert page.fingerprint == page_of(text.encode()).fingerprint


def test_the_character_budget_ends_a_page_at_a_line() -> None:
    page = page_of(b"".join(b"%05d" % i + b"x" * 94 + b"\n" for i in range(200)), chars=1_000)
    assert page.truncated_by == "bytes"
    assert len(page.content) <= 1_000
    assert page.next_offset == page.content.count("\n") + 2


def test_long_lines_are_cut_and_counted() -> None:
    page = page_of(b"a" * 10_000_000 + b"\nb\n")
    assert page.content == "1|" + "a" * 2_000 + "... [truncated]\n2|b"
    assert page.cut_lines == 1


def test_other_encodings_are_shown() -> None:
    assert page_of(b"caf\xe9\n")[0] == "1|café"
    assert page_of(b"caf\xe9\n").encoding == "latin-1"
    assert page_of(b"\xff\xfe" + "ä\nb\n".encode("utf-16-le"), chunk=3)[:2] == ("1|ä\n2|b", 2)
    assert page_of(b"\xef\xbb\xbfbom\n").content == "1|bom"
    assert page_of("ä".encode() + b"\xff\n").content == "1|ä\ufffd"


def test_page_decodes_each_line_by_itself() -> None:
    page = page_of(b"caf\xe9\n" + "café\n".encode() + b"\0\n")
    assert (page.content, page.encoding) == ("1|café\n2|café\n3|\ufffd", "mixed")
    assert page_of(b"caf\xe9\nascii\n", offset=2)[0::6] == ("2|ascii", "utf-8")


def test_byte_order_mark_is_removed_from_first_line_only() -> None:
    assert page_of(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n").content == "1|a\n2|\ufeffb"
    assert page_of(b"a\n\xff\xfe\n").content == "1|a\n2|\xff\xfe"


def test_binary_file_has_nul_character_near_its_start() -> None:
    assert is_binary(b"text\0")
    assert is_binary(codecs.BOM_UTF32_LE + "text".encode("utf-32-le"))
    assert not is_binary(codecs.BOM_UTF16_LE + "text".encode("utf-16-le"))
    assert not is_binary(codecs.BOM_UTF16_LE + ("x" * 4_094 + "\U0001f600").encode("utf-16-le"))
    assert not is_binary(b"x" * SNIFF_BYTES + b"\0")
    assert decode(codecs.BOM_UTF32_LE + "text".encode("utf-32-le")) is None
