"""V4A patches as models write them, and that strict patches keep their meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.files.textfile import decode
from hermes_exec.tools.patch.hunks import apply_hunks
from hermes_exec.tools.patch.v4a import AddFile, DeleteFile, Hunk, MoveFile, Operation, UpdateFile, parse
from tests.support.patch_texts import FILES, TEXTS, PatchText


def apply(text: str) -> dict[str, str]:
    files = dict(FILES)
    for operation in parse(text):
        if isinstance(operation, AddFile):
            files[operation.path] = operation.content
        elif isinstance(operation, DeleteFile):
            del files[operation.path]
        elif isinstance(operation, MoveFile):
            files[operation.target] = files.pop(operation.path)
        else:
            file = decode(files.pop(operation.path).encode())
            assert file is not None
            data = apply_hunks(file, operation.hunks, operation.path)[0]
            files[operation.move_to or operation.path] = data.decode()
    return files


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in TEXTS])
def test_patch_text_is_applied_or_refused_with_its_reason(row: PatchText) -> None:
    if row.changes is not None:
        expected = {path: content for path, content in {**FILES, **row.changes}.items() if content is not None}
        assert apply(row.text) == expected
        return
    with pytest.raises(ToolFailure) as failure:
        apply(row.text)
    assert failure.value.kind == "bad_patch"
    assert row.reason in failure.value.message
    assert ("cut off" in failure.value.message) == ("cut off" in row.reason)
    assert "Nothing was changed. The format is:\n*** Begin Patch\n" in failure.value.message


# Lines of files that are markers, wrappers or signs in some loose form, beside any other text.
_MARKERS = [
    *(
        "*** Begin Patch",
        "*** End Patch",
        "*** End Patch ***",
        "*** Update File: a",
        "***Add File: b",
        "*** Move to: c",
    ),
    *("*** End of File", "*** Create File: d", "*** Environment ID: e", "@@ f", "\\ No newline at end of file", "```"),
    *(
        "EOF",
        "<<'EOF'",
        "cd x && apply_patch <<EOF",
        "diff --git a/a b/a",
        "--- a/a",
        "+++ b/a",
        "</patch>",
        "\ufeff",
        "\\n",
    ),
]
_lines = st.builds(
    lambda pad, text: pad + text,
    st.sampled_from(["", " ", "    ", "\t", "\u00a0"]),
    st.sampled_from(_MARKERS) | st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=8),
)
_paths = st.text(st.sampled_from("ab/*.` "), min_size=1, max_size=6).map(str.strip).filter(bool)
_changes = st.lists(st.tuples(st.sampled_from(" +-"), _lines), min_size=1, max_size=6).filter(
    lambda rows: any(sign != " " for sign, _ in rows)
)


def strict_update(path: str, changes: list[tuple[str, str]], move_to: str | None) -> tuple[str, Operation]:
    head = f"*** Update File: {path}\n" + (f"*** Move to: {move_to}\n" if move_to else "")
    old = tuple(line for sign, line in changes if sign != "+")
    new = tuple(line for sign, line in changes if sign != "-")
    text = head + "@@\n" + "\n".join(sign + line for sign, line in changes)
    return text, UpdateFile(path, (Hunk((), old, new, 0),), move_to)


def strict_add(path: str, lines: list[str]) -> tuple[str, Operation]:
    content = "".join(line + "\n" for line in lines)
    return "\n".join([f"*** Add File: {path}", *("+" + line for line in lines)]), AddFile(path, content)


_operations = st.one_of(
    st.builds(strict_update, _paths, _changes, st.none() | _paths),
    st.builds(strict_add, _paths, st.lists(_lines, max_size=5)),
    _paths.map(lambda path: (f"*** Delete File: {path}", DeleteFile(path))),
    st.builds(lambda a, b: (f"*** Move File: {a} -> {b}", MoveFile(a, b)), _paths, _paths),
)


def without_numbers(operation: Operation) -> object:
    if not isinstance(operation, UpdateFile):
        return operation
    return operation.path, operation.move_to, [(hunk.hints, hunk.old, hunk.new) for hunk in operation.hunks]


@given(st.lists(_operations, min_size=1, max_size=4), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_strict_patch_keeps_its_meaning(parts: list[tuple[str, Operation]], begin: bool, line_end: str) -> None:
    """A line of a file stays one, whatever it looks like."""
    lines = ["*** Begin Patch"] * begin + [text for text, _ in parts] + ["*** End Patch"]
    operations = parse("\n".join(lines).replace("\n", line_end))
    assert [without_numbers(found) for found in operations] == [without_numbers(wanted) for _, wanted in parts]


@pytest.mark.parametrize("line", ["*** End Patch", "*** Update File: b", "*** End Patch ***", "```", "EOF"])
def test_indented_marker_of_strict_patch_is_context(line: str) -> None:
    text = f"*** Begin Patch\n*** Update File: a\n {line}\n-x\n {line}\n*** End Patch\n"
    (operation,) = parse(text)
    assert isinstance(operation, UpdateFile)
    assert operation.hunks[0].old == (line, "x", line)
