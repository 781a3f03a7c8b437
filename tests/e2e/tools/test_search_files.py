"""What search_files finds and what it reports as left out, in a real slot."""

from __future__ import annotations

import random
import re

import pytest

from hermes_exec.slot.slot import Slot
from tests.e2e.tools.conftest import Caller


async def _write_tree(slot: Slot) -> None:
    for name in (".env", "sub/.env", ".github/workflows/ci.yml", "a.txt", "build/out.txt", "src/deep/b.py"):
        await slot.files.write_text(name, "needle\n")
    await slot.files.write_text(".gitignore", "build/\n")


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        (".env", [".env", "sub/.env"]),
        (".github/**/*.yml", [".github/workflows/ci.yml"]),
        ("{workspace}/a.txt", ["a.txt"]),
        ("{workspace}/src/**/*.py", ["src/deep/b.py"]),
        ("~/notes-*.txt", ["~/notes-1.txt"]),
        ("src/", ["src/deep/b.py"]),
    ],
)
async def test_search_files_finds_hidden_and_absolute_patterns(
    call: Caller, slot: Slot, pattern: str, files: list[str]
) -> None:
    await _write_tree(slot)
    await slot.files.write_text(f"{slot.home}/notes-1.txt", "needle\n")
    try:
        pattern = pattern.format(workspace=slot.workspace)
        expected = sorted(file.replace("~", slot.home) for file in files)
        names = await call("search_files", pattern=pattern, target="files")
        shown = {path.removeprefix(f"{slot.workspace}/") for path in names["files"]}
        assert shown == {path.removeprefix(f"{slot.workspace}/") for path in expected}
        contents = await call("search_files", pattern="needle", file_glob=pattern, output_mode="files_only")
        assert sorted(contents["files"]) == sorted(names["files"])
        assert "_hint" not in names | contents
    finally:
        await slot.files.remove(f"{slot.home}/notes-1.txt")


async def test_search_files_reports_what_it_left_out(call: Caller, slot: Slot) -> None:
    await _write_tree(slot)
    await slot.files.write_bytes("data", b"needle\0")
    ignored = await call("search_files", pattern="build/*", target="files")
    assert ignored["total_count"] == 0
    assert (
        "Left out: 1 ignored by .gitignore or .ignore (build). To search one of them, name it in 'path'"
        in (ignored["_hint"])
    )
    assert (await call("search_files", pattern="*", target="files", path="build"))["files"] == ["build/out.txt"]
    nothing = await call("search_files", pattern="absent")
    assert "4 hidden (.env, .github, .gitignore, sub/.env)" in nothing["_hint"]
    assert "1 binary (data)" in nothing["_hint"]
    found = await call("search_files", pattern="needle")
    assert (found["total_count"], found["binary_skipped"], "_hint" in found) == (2, 1, False)
    assert "1 not a file (src)" in (await call("search_files", pattern="src", target="files"))["_hint"]


async def test_search_files_refuses_a_pattern_with_a_line_end(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("f", "a\nb\n")
    refused = await call.fails("search_files", pattern="a\\nb")
    assert refused.error_kind == "bad_pattern"
    assert "each line is searched by itself" in str(refused.data["error"])
    assert "backslash" not in str(refused.data["error"])
    assert (await call("search_files", pattern="a\\n?"))["total_count"] == 1


_PIECES = [
    b"a",
    b" ",
    b"{",
    b"\r",
    b"\n",
    "é".encode(),
    "好".encode(),
    "你".encode("gbk"),
    b"\xfc",
    b"\xe2\x82",
    b"\xc0\x80",
]
_PIECES += [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "\ufeff".encode(), b"\xff\xfe"]


def _files_of_many_encodings() -> list[bytes]:
    text = "Grüße\n你好\nplain\n"
    files = [text.encode(codec) for codec in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", "utf-32-be")]
    files += [b"\xfe\xff" + text.encode("utf-16-be"), "Grüße\n".encode("latin-1"), "日本\n".encode("shift-jis")]
    files += [b"\xff\xfe" + ("x" * 4_094 + "\U0001f600\n").encode("utf-16-le"), b"line\n" * 2_000 + b"tail \0 end"]
    chance = random.Random(42)
    return files + [b"".join(chance.choices(_PIECES, k=20)) for _ in range(40)]


async def test_search_files_finds_text_that_read_file_shows(call: Caller, slot: Slot) -> None:
    binary = 0
    for number, data in enumerate(_files_of_many_encodings()):
        await slot.files.write_bytes(f"f{number}", data)
        page = await call.toolbox.call("read_file", {"path": f"f{number}", "limit": 10_000})
        if not page.ok:
            assert page.error_kind == "is_binary", page.content
            left_out = await call("search_files", pattern=".", path=f"f{number}")
            assert (left_out["total_count"], left_out["binary_skipped"]) == (0, 1)
            binary += 1
            continue
        lines = [row.partition("|")[2] for row in str(page.data["content"]).split("\n")]
        for line in {*lines[:12], lines[-1]} - {""}:
            shown = line.removesuffix("... [truncated]")
            result = await slot.files.search("^" + re.escape(shown), path=f"f{number}")
            assert result.total >= lines.count(line), (data, line)
    assert binary == 2  # UTF-32
