"""Replacing text in a file: strategies, ambiguity, and the bytes that must not change."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.files.textfile import LfView, TextFile, decode
from hermes_exec.tools.patch import matching
from hermes_exec.tools.patch.edits import minimal_edits, replace
from hermes_exec.tools.patch.planning import decode_text


def file_of(data: bytes) -> TextFile:
    file = decode(data)
    assert file is not None
    return file


def edit(data: bytes, old: str, new: str, *, replace_all: bool = False, similar: bool = False) -> tuple[bytes, str]:
    result, strategy, _ = replace(file_of(data), old, new, replace_all=replace_all, similar=similar)
    return result, strategy


lines = st.lists(st.text(alphabet="abé\t \x07", max_size=8), min_size=1, max_size=12)


@given(st.binary(max_size=200))
def test_decoding_and_encoding_gives_the_same_bytes(data: bytes) -> None:
    file = decode(data)
    if file is not None:
        assert file.bom + file.encode(0, len(file.text)) == data


@given(st.text(alphabet="a\r\n", max_size=40))
def test_offsets_of_the_lf_view_lead_back_to_the_text(text: str) -> None:
    view = LfView(text)
    pieces = [text[view.offset(i) : view.offset(i + 1)] for i in range(len(view.text))]
    assert "".join(pieces) == text
    assert [piece.replace("\r\n", "\n") for piece in pieces] == list(view.text)


@given(lines, lines, st.sampled_from(["\n", "\r\n"]), st.sampled_from([b"", b"\xef\xbb\xbf"]), st.booleans())
def test_bytes_outside_the_edit_stay(before: list[str], after: list[str], end: str, bom: bytes, final: bool) -> None:
    head = bom + "".join(line + end for line in before).encode("latin-1").replace(b"\xe9", b"\xc3\xa9")
    tail = (end + end.join(after) + (end if final else "")).encode()
    result, strategy = edit(head + b"<UNIQUE MARK>" + tail, "<UNIQUE MARK>", "x\ny")
    assert strategy == "exact"
    assert result.startswith(head)
    assert result.endswith(tail)
    middle = result[len(head) : len(result) - len(tail)]
    assert middle in (b"x\ny", b"x\r\ny")


@given(lines, lines)
def test_an_edit_and_its_reverse_are_the_identity(before: list[str], after: list[str]) -> None:
    data = "\n".join([*before, "the only one", *after]).encode()
    there, _ = edit(data, "the only one", "another\nthing")
    back, _ = edit(there, "another\nthing", "the only one")
    assert back == data


@given(st.text(alphabet="ab\n", max_size=30), st.text(alphabet="ab\n", max_size=30))
def test_minimal_edits_give_the_wanted_text(region: str, wanted: str) -> None:
    text = region
    for found in sorted(minimal_edits(0, region, wanted), reverse=True):
        text = text[: found.start] + found.text + text[found.end :]
    assert text == wanted


@pytest.mark.parametrize(
    ("data", "old", "new", "strategy", "result"),
    [
        (b"a = 1\nb = 2\n", "a = 1", "a = 3", "exact", b"a = 3\nb = 2\n"),
        (b"  a = 1  \n  b = 2\n", "a = 1\nb = 2", "a = 1\nb = 3", "line_trimmed", b"  a = 1  \n  b = 3\n"),
        (b"x = a   +\tb\n", "a + b", "a - b", "whitespace_normalized", b"x = a - b\n"),
        (
            b"if  x:\n\tpass\n",
            "  if x:\n    pass",
            "  if x:\n    return\n  else:\n    go",
            "indentation_flexible",
            b"if  x:\n\treturn\nelse:\n\tgo\n",
        ),
        (
            b"\tif  x:\n\t\tpass\n",
            "if x:\n    pass",
            "if x:\n    pass\nelse:\n    go",
            "whitespace_normalized",
            b"\tif  x:\n\t\tpass\n\telse:\n\t\tgo\n",
        ),
        (b"a\n\tb\n", "a\\n\\tb", "c\\n\\td", "escape_normalized", b"c\n\td\n"),
        (b"call(one)\n", "\n  call(one)\n\n", "\n  call(two)\n\n", "trimmed_boundary", b"call(two)\n"),
        (
            "say “hi” – now\n".encode(),
            'say "hi" - now',
            'say "hi" - later',
            "unicode_normalized",
            "say “hi” – later\n".encode(),
        ),
    ],
)
def test_each_strict_strategy_finds_its_case(data: bytes, old: str, new: str, strategy: str, result: bytes) -> None:
    assert edit(data, old, new) == (result, strategy)


BLOCK = b"def f():\n    one = 1\n    two = 2\n    return one\n"


def test_no_more_than_ten_thousand_places_are_replaced_at_once() -> None:
    assert edit(b"ab\n" * 10_000, "a", "c", replace_all=True)[0] == b"cb\n" * 10_000
    with pytest.raises(ToolFailure, match="more than 10,000 places") as raised:
        edit(b"a" * 3_000_000, "a", "c", replace_all=True)
    assert raised.value.kind == "too_large"


def test_a_file_of_very_many_lines_is_not_edited() -> None:
    with pytest.raises(ToolFailure, match="more than 500,000 lines") as raised:
        decode_text(b"\n" * 500_001, "a.txt")
    assert raised.value.kind == "too_large"


def test_the_similarity_strategies_are_tried_only_when_asked_for() -> None:
    old = "def f():\n    one = 10\n    two = 2\n    return one"
    with pytest.raises(ToolFailure) as failure:
        edit(BLOCK, old, "pass")
    assert failure.value.kind == "no_match"
    assert edit(BLOCK, old, "pass", similar=True) == (b"pass\n", "block_anchor")


def test_context_aware_needs_half_of_the_lines() -> None:
    text = "alpha beta\ngamma delta\nepsilon\n"
    found = matching.find(text, "alpha betta\ngamma delta\nsomething else", similar=True)
    assert found is not None
    assert found.strategy == "context_aware"
    assert matching.find(text, "nothing\nof it\nis here", similar=True) is None


def test_several_places_are_an_error_with_line_numbers() -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(b"x\ny\nx\n", "x", "z")
    assert failure.value.kind == "ambiguous"
    assert "lines 1, 3" in failure.value.message
    assert edit(b"x\ny\nx\n", "x", "z", replace_all=True) == (b"z\ny\nz\n", "exact")


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("void f() {\n  {\n    {\n    }\n    }\n    }\n}\n", "    }\n    }\n"),
        ("aaa", "aa"),
    ],
)
def test_places_that_overlap_are_several_too(text: str, old: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(text.encode(), old, "z")
    assert failure.value.kind == "ambiguous"


def test_no_match_shows_the_nearest_section() -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(b"one\ndef compute_total(items):\n    return 0\n", "def compute_totals(item):\n    return 1", "x")
    assert failure.value.kind == "no_match"
    assert "Did you mean" in failure.value.message
    assert "2|def compute_total(items):" in failure.value.message


@pytest.mark.parametrize(
    ("old", "new", "kind"), [("", "x", "bad_value"), ("a", "a", "no_change"), ("a\r\n", "a\n", "no_change")]
)
def test_pointless_edits_are_refused(old: str, new: str, kind: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(b"a\n", old, new)
    assert failure.value.kind == kind


def test_over_escaped_input_is_refused() -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(b'a\nsay("x")\nb\n', 'a\nsay(\\"x\\")\nb', 'a\nsay(\\"y\\")\nb', similar=True)
    assert failure.value.kind == "over_escaped"


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    with pytest.raises(ToolFailure) as failure:
        edit(b"caf\xe9\n", "café", "tea ☕")
    assert failure.value.kind == "encoding"
    assert edit(b"caf\xe9 \xa9\n", "café", "thé") == (b"th\xe9 \xa9\n", "exact")


OLD, NEW = "Grüße\n".encode("latin-1"), "Grüße\n".encode()
MIXED = b"one\n" + OLD + b"two\r\n" + b"three\nfour\n" + NEW + b"five\n"


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("two", "2", MIXED.replace(b"two", b"2")),
        ("one", "é", MIXED.replace(b"one", b"\xe9")),
        ("two", "é", MIXED.replace(b"two", b"\xe9")),
        ("four", "é", MIXED.replace(b"four", "é".encode())),
        ("five\n", "é\nè\n", MIXED.replace(b"five\n", "é\nè\n".encode())),
        ("one\nGrüße", "ü\nGrüsse ß", MIXED.replace(b"one\nGr\xfc\xdfe", b"\xfc\nGr\xfcsse \xdf")),
        ("four\nGrüße", "ü\nGrüsse ß", MIXED.replace("four\nGrüße".encode(), "ü\nGrüsse ß".encode())),
        ("four\nGrüße\n", "", MIXED.replace(b"four\n" + NEW, b"")),
    ],
)
def test_edit_of_mixed_encodings_is_in_that_of_its_lines(old: str, new: str, result: bytes) -> None:
    assert edit(MIXED, old, new)[0] == result


def test_all_places_of_mixed_encodings_are_replaced_in_their_own() -> None:
    assert edit(MIXED, "üße", "ä", replace_all=True)[0] == MIXED.replace(b"\xfc\xdfe", b"\xe4").replace(
        "üße".encode(), "ä".encode()
    )


def test_edit_across_mixed_encodings_keeps_text_or_is_refused() -> None:
    data = "alt é\n".encode("latin-1") + "neu ü\n".encode() + b"end\n"
    moved = edit(data, "alt é\nneu ü\nend", "neu ü\nplain\nalt é\nend")[0]
    assert file_of(moved).text == "neu ü\nplain\nalt é\nend\n"
    with pytest.raises(ToolFailure, match="partly Latin-1 and partly UTF-8") as caught:
        edit(data, "alt é\nneu ü", "ö")
    assert caught.value.kind == "encoding"
    with pytest.raises(ToolFailure, match=r"The lines there are latin-1 text, which has no character '日'"):
        edit(data, "alt", "日")


@given(
    st.lists(st.sampled_from([b"a\n", b"b\r\n", OLD, NEW, b"\xff\xc3\xa9\n", b"\xce\xd2 \n"]), max_size=8), st.data()
)
def test_edit_of_any_encodings_keeps_all_other_bytes(parts: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts)))
    head, tail = b"".join(parts[:at]), b"".join(parts[at:])
    result, _ = edit(head + b"<MARK>\n" + tail, "<MARK>", "[é]")
    assert result.startswith(head)
    assert result.endswith(b"\n" + tail)
    assert result[len(head) : len(result) - len(tail) - 1] in (b"[\xe9]", "[é]".encode())


def test_mixed_line_ends_stay_where_nothing_changes() -> None:
    assert edit(b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nb\nX\nd")[0] == b"a\r\nb\nX\r\nd\n"


def test_new_lines_get_the_indentation_of_the_file() -> None:
    data = b"class A:\n\tdef f(self):\n\t\treturn 1\n"
    result, _ = edit(
        data,
        "    def f(self):\n        return 1\n",
        "    def f(self):\n        if x:\n            return 2\n        return 1\n",
    )
    assert result == b"class A:\n\tdef f(self):\n\t\tif x:\n\t\t\treturn 2\n\t\treturn 1\n"


def test_a_missing_final_newline_stays_missing() -> None:
    assert edit(b"a\n  b", "b\n", "c\n")[0] == b"a\n  c"
    assert edit(b"a\nb", "b", "c")[0] == b"a\nc"


@pytest.mark.parametrize(
    ("text", "old"),
    [
        (" " * 1_000_000, "  x y"),
        ("a\n" * 300_000, "a\n" * 500 + "b c"),
        ("a" * 400_000 + "é", "a" * 400 + "-b"),
        ("word " * 200_000, "word word  x"),
        ("\n".join(f"def compute_{i}(x):" for i in range(15_000)), "def compute_all(y):\n  return"),
    ],
)
def test_a_search_in_a_hostile_file_ends_soon(text: str, old: str) -> None:
    started = time.process_time()
    with pytest.raises(ToolFailure):
        edit(text.encode(), old, "new", similar=True)
    assert time.process_time() - started < 15
