"""V4A patches: the grammar, and hunks on one file."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.files.textfile import decode
from hermes_exec.tools.patch.hunks import apply_hunks
from hermes_exec.tools.patch.v4a import AddFile, DeleteFile, MoveFile, UpdateFile, parse


def patch(body: str) -> str:
    return f"*** Begin Patch\n{body}\n*** End Patch"


def update(data: bytes, body: str, *, similar: bool = False) -> bytes:
    (operation,) = parse(patch("*** Update File: f\n" + body))
    assert isinstance(operation, UpdateFile)
    file = decode(data)
    assert file is not None
    return apply_hunks(file, operation.hunks, "f", similar=similar)[0]


def test_every_operation_is_parsed() -> None:
    text = patch(
        "*** Update File: a.py\n@@ class A @@\n@@ def f\n one\n-two\n+three\n\n*** Add File: new "
        "dir/b\n+x\n+\n+y\n*** Delete File: c\n*** Move File: d -> e/f"
    )
    update_, add, delete, move = parse(text)
    assert isinstance(update_, UpdateFile)
    assert update_.hunks[0].hints == ("class A", "def f")
    assert update_.hunks[0].old == ("one", "two", "")
    assert update_.hunks[0].new == ("one", "three", "")
    assert update_.hunks[0].loose_end == 1
    assert add == AddFile("new dir/b", "x\n\ny\n")
    assert (delete, move) == (DeleteFile("c"), MoveFile("d", "e/f"))


def test_a_patch_is_parsed_in_time_proportional_to_its_length() -> None:
    """Each of these took minutes."""
    blanks = " " * 300_000
    assert parse(patch(f"*** Add File: {blanks}a{blanks}b{blanks}" + "\n" * 500_000)) == (AddFile(f"a{blanks}b", ""),)
    assert parse(patch(f"*** Update File: a\n*** Move to: b{blanks}c")) == (UpdateFile("a", (), f"b{blanks}c"),)


def test_a_hint_that_stands_everywhere_is_no_quadratic_search() -> None:
    with pytest.raises(ToolFailure, match=r"occur 100000 times"):
        update(b"a\n" * 100_000, "@@ a\n-a\n+b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("*** Begin Patch\n*** Update File: a\n-x\n+y\n", "cut off"),
        (patch("*** Update File: a\nx"), "starts with"),
        (patch("*** Update File: a\n x\n"), "neither"),
        (patch("*** Frobnicate File: a"), "expected"),
        (patch("*** Move File: a"), "src -> dst"),
        (patch("*** Add File: a\nx"), "starts with '+'"),
        (patch(""), "no operation"),
        (patch("*** Update File: a\n" + "@@ x\n" * 51 + "-x"), "more than 50 lines"),
        (patch("*** Delete File: a") + "\n" + patch("*** Delete File: b"), "after"),
    ],
)
def test_a_bad_patch_names_its_line(text: str, what: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        parse(text)
    assert failure.value.kind == "bad_patch"
    assert what in failure.value.message
    assert failure.value.message.startswith("Line ")


def test_the_hint_chooses_between_equal_hunks() -> None:
    data = b"def a():\n    x = 1\n\ndef b():\n    x = 1\n"
    assert update(data, "@@ def b(): @@\n-    x = 1\n+    x = 2") == b"def a():\n    x = 1\n\ndef b():\n    x = 2\n"
    assert update(data, "@@ def a():\n-    x = 1\n+    x = 2") == b"def a():\n    x = 2\n\ndef b():\n    x = 1\n"
    with pytest.raises(ToolFailure) as failure:
        update(data, "-    x = 1\n+    x = 2")
    assert failure.value.kind == "ambiguous"
    assert "lines 2, 5" in failure.value.message


def test_stacked_hints_narrow_down() -> None:
    data = b"class A:\n  def f():\n    x\nclass B:\n  def f():\n    x\n"
    assert (
        update(data, "@@ class B:\n@@ def f():\n-    x\n+    y")
        == b"class A:\n  def f():\n    x\nclass B:\n  def f():\n    y\n"
    )


def test_empty_context_lines_count() -> None:
    data = b"a\nb\n\na\nc\n"
    assert update(data, " a\n-b\n\n a\n+new\n c") == b"a\n\na\nnew\nc\n"
    assert update(b"a\nc\n\na\nb\n\nz\n", " a\n-b\n \n z") == b"a\nc\n\na\n\nz\n"


def test_blank_layout_lines_at_the_end_of_a_hunk_are_forgiven() -> None:
    assert update(b"a\nb\nc\n", " a\n-b\n+B\n\n") == b"a\nB\nc\n"
    assert update(b"a\nb\n", " a\n-b\n+B\n\n\n") == b"a\nB\n"


def test_lines_are_removed_with_their_line_end() -> None:
    assert update(b"a\nb\nc\n", "-b") == b"a\nc\n"
    assert update(b"a\nb", "-b") == b"a"
    assert update(b"a\r\nb\r\nc\r\n", "-b") == b"a\r\nc\r\n"


def test_lines_are_only_added() -> None:
    assert update(b"a\nb\n", "@@ a\n+x") == b"a\nx\nb\n"
    assert update(b"a\r\nb", "+x") == b"a\r\nb\r\nx"
    assert update(b"", "+x\n+y") == b"x\ny\n"


def test_the_last_line_keeps_its_end() -> None:
    assert update(b"a\nb", " a\n-b\n+c") == b"a\nc"
    assert update(b"a\nb\n", " a\n-b\n+c") == b"a\nc\n"


def test_end_of_file_anchors() -> None:
    assert update(b"x\ny\nx\n", "-x\n+z\n*** End of File") == b"x\ny\nz\n"


@pytest.mark.parametrize(
    "data",
    [b"caf\xe9\x07\nold\nlast", b"\xef\xbb\xbfa\r\nold\r\n\x07\r\n", b"\xff\xfe" + "ä\nold\nz".encode("utf-16-le")],
)
def test_other_bytes_stay(data: bytes) -> None:
    file = decode(data)
    assert file is not None
    encode = "utf-16-le" if data.startswith(b"\xff\xfe") else "latin-1"
    assert update(data, "-old\n+new") == data.replace("old".encode(encode), "new".encode(encode))


def test_hunk_of_mixed_encodings_is_in_that_of_its_lines() -> None:
    old, new = "Grüße\n".encode("latin-1"), "Grüße\n".encode()
    data = old + b"a\n" + b"-\n" * 9 + b"b\r\n" + new
    changed = update(data, " Grüße\n-a\n+ä\n@@\n-b\n+ß\n Grüße")
    assert changed == old + b"\xe4\n" + b"-\n" * 9 + "ß\r\n".encode() + new


def test_loosely_matched_context_keeps_its_own_bytes() -> None:
    assert update(b"\ta  \n\tb\n\tc\n", " a\n-b\n+B\n c") == b"\ta  \n\tB\n\tc\n"


def test_hunks_are_looked_for_in_the_file_as_it_was() -> None:
    assert update(b"a\nb\n", "-a\n+b2\n@@\n-b\n+a2") == b"b2\na2\n"
    with pytest.raises(ToolFailure) as failure:
        update(b"a\nb\nc\n", "-a\n-b\n+x\n@@\n-b\n+y")
    assert failure.value.kind == "overlap"


text_lines = st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=15, unique=True)


def hunk_of(before: list[str], after: list[str]) -> str:
    rows = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += [" " + line for line in before[i1:i2]]
        else:
            rows += ["-" + line for line in before[i1:i2]] + ["+" + line for line in after[j1:j2]]
    return "\n".join(rows)


@settings(max_examples=200)
@given(text_lines, text_lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_patch_and_its_reverse_are_the_identity(before: list[str], after: list[str], end: str, final: bool) -> None:
    if before == after:
        return
    closing = end if final else ""
    data = (end.join(before) + closing).encode()
    wanted = (end.join(after) + closing).encode()
    there = update(data, hunk_of(before, after))
    if end in data.decode():
        assert there == wanted
    else:
        assert there.replace(b"\r\n", b"\n") == wanted.replace(b"\r\n", b"\n")
    assert update(there, hunk_of(after, before)).replace(b"\r\n", b"\n") == data.replace(b"\r\n", b"\n")
