"""read_file, write_file, patch and search_files in a real slot."""

from __future__ import annotations

import json
import os

import pytest

from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolOptions
from tests.e2e.tools.conftest import Caller


async def test_pages_of_a_file(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "".join(f"line {n}\n" for n in range(1, 1_201)))
    first = await call("read_file", path="a")
    assert first["content"].startswith("1|line 1\n2|line 2\n")
    assert (first["total_lines"], first["truncated"], first["truncated_by"]) == (1_200, True, "lines")
    assert (first["next_offset"], first["file_size"]) == (501, 10_893)
    last = await call("read_file", path="a", offset=1_199, limit=10)
    assert (last["content"], last["truncated"]) == ("1199|line 1199\n1200|line 1200", False)
    beyond = await call("read_file", path="a", offset=5_000)
    assert beyond["content"] == ""
    assert "past its end" in beyond["hint"]


async def test_a_page_ends_at_the_character_budget(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("wide", ("x" * 1_500 + "\n") * 200)
    page = await call("read_file", path="wide")
    assert page["truncated_by"] == "bytes"
    assert 90_000 < len(page["content"]) <= 100_000
    following = await call("read_file", path="wide", offset=page["next_offset"])
    assert following["content"].startswith(f"{page['next_offset']}|x")


async def test_a_large_file_is_counted_whole(call: Caller, slot: Slot) -> None:
    await slot.run("seq 1 2000000 > big", check=True)
    page = await call("read_file", path="big", offset=1_999_999, limit=5)
    assert page["content"] == "1999999|1999999\n2000000|2000000"
    assert page["total_lines"] == 2_000_000


async def test_what_cannot_be_shown_is_refused(call: Caller, slot: Slot) -> None:
    await slot.files.write_bytes("a.bin", b"text\0binary")
    result = await call.fails("read_file", path="a.bin")
    assert (result.error_kind, result.data["is_binary"]) == ("is_binary", True)
    await slot.files.write_bytes("a.png", b"\x89PNG\r\n")
    result = await call.fails("read_file", path="a.png")
    assert (result.error_kind, result.data["is_image"]) == ("is_image", True)
    assert (await call.fails("read_file", path=".")).error_kind == "is_directory"
    assert (await call.fails("read_file", path="/dev/zero")).error_kind == "not_a_file"
    await slot.run("mkfifo pipe", check=True)
    assert (await call.fails("read_file", path="pipe")).error_kind == "not_a_file"
    await slot.files.write_bytes("bad.docx", b"PK broken")
    assert (await call.fails("read_file", path="bad.docx")).error_kind == "bad_document"


async def test_similar_files_are_suggested(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("src/config.py", "")
    result = await call.fails("read_file", path="src/confg.py")
    assert result.error_kind == "not_found"
    assert result.data["similar_files"] == [f"{slot.workspace}/src/config.py"]
    assert (await call.fails("read_file", path="nowhere/at/all")).data.get("similar_files") is None


async def test_repeated_reads_of_the_same_text_are_short(call: Caller, toolbox: Toolbox, slot: Slot) -> None:
    await slot.files.write_text("a", "one\n")
    await call("read_file", path="a")
    again = await call("read_file", path="a")
    assert (again["status"], again["dedup"], again["content_returned"]) == ("unchanged", True, False)
    blocked = await call.fails("read_file", path="a")
    assert blocked.error_kind == "repeated"
    assert str(blocked.data["error"]).startswith("BLOCKED")
    assert (await call("read_file", path="a", limit=10))["content"] == "1|one"
    toolbox.forget_reads()
    assert (await call("read_file", path="a"))["content"] == "1|one"
    always = Caller(Toolbox(slot, options=ToolOptions(skip_unchanged_reads=False)))
    assert [(await always("read_file", path="a"))["content"] for _ in range(4)] == ["1|one"] * 4


async def test_a_write_makes_directories_and_says_so(call: Caller, slot: Slot) -> None:
    first = await call("write_file", path="new/deep/a.txt", content="ä\n")
    assert (first["bytes_written"], first["dirs_created"]) == (3, True)
    assert first["files_modified"] == [f"{slot.workspace}/new/deep/a.txt"]
    assert (await call("write_file", path="new/deep/b.txt", content=""))["dirs_created"] is False


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        (b"a\r\nb\n", "x\ny\n", b"x\ny\n"),
        (b"a\r\n", "x\r\ny\n", b"x\r\ny\n"),
        (b"a", "x", b"x"),
    ],
)
async def test_a_write_keeps_line_ends_and_mark(call: Caller, slot: Slot, old: bytes, content: str, new: bytes) -> None:
    await slot.files.write_bytes("a", old, mode=0o750)
    await call("write_file", path="a", content=content)
    assert await slot.files.read_bytes("a") == new
    assert (await slot.files.stat("a")).mode & 0o777 == 0o750


async def test_writes_that_cannot_be_are_error_results(call: Caller, slot: Slot) -> None:
    await slot.files.mkdir("directory")
    assert (await call.fails("write_file", path="directory", content="x")).error_kind == "is_directory"
    await slot.files.write_text("file", "x")
    assert (await call.fails("write_file", path="file/below", content="x")).error_kind == "not_a_directory"
    assert (await call.fails("write_file", path="/proc/x", content="x")).error_kind in {
        "not_found",
        "permission_denied",
    }


async def test_a_replacement_tells_diff_strategy_and_lint(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a.py", "def f():\n    return 1\n")
    done = await call("patch", mode="replace", path="a.py", old_string="return 1", new_string="return 2")
    assert done["success"] is True
    assert done["strategy"] == "exact"
    assert done["lint"]["status"] == "ok"
    assert done["diff"] == "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"
    assert done["files_modified"] == [done["resolved_path"]] == [f"{slot.workspace}/a.py"]
    loose = await call("patch", path="a.py", old_string="def f():\n  return 2", new_string="def f():\n  return 3")
    assert loose["strategy"] == "line_trimmed"
    assert await slot.files.read_text("a.py") == "def f():\n    return 3\n"


async def test_several_places_need_replace_all(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "x\ny\nx\n")
    result = await call.fails("patch", mode="replace", path="a", old_string="x", new_string="z")
    assert result.error_kind == "ambiguous"
    assert "lines 1, 3" in str(result.data["error"])
    done = await call("patch", mode="replace", path="a", old_string="x", new_string="z", replace_all=True)
    assert done["replacements"] == 2
    assert await slot.files.read_text("a") == "z\ny\nz\n"


async def test_failures_in_a_row_are_answered_with_advice(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "def compute(x):\n")
    edit = {"mode": "replace", "path": "a", "old_string": "def computed(y):", "new_string": "z"}
    first = await call.fails("patch", **edit)
    assert "Did you mean one of these sections?\n1|def compute(x):" in str(first.data["error"])
    await call.fails("patch", **edit)
    assert "failure #3" in str((await call.fails("patch", **edit)).data["_hint"])


async def test_a_patch_changes_several_files_at_once(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "one\ntwo\n")
    await slot.files.write_text("gone", "x\n")
    await slot.files.write_text("from", "moved\n", mode=0o741)
    text = (
        "*** Begin Patch\n*** Update File: a\n one\n-two\n+TWO\n*** Add File: new/b\n+b\n*** Delete File: gone\n"
        "*** Move File: from -> there/to\n*** Update File: there/to\n-moved\n+moved and changed\n*** End Patch"
    )
    done = await call("patch", mode="patch", patch=text)
    root = slot.workspace
    assert done["files_modified"] == [f"{root}/a"]
    assert sorted(done["files_created"]) == [f"{root}/new/b", f"{root}/there/to"]
    assert sorted(done["files_deleted"]) == [f"{root}/from", f"{root}/gone"]
    assert done["strategies"] == {"a": ["exact"], "there/to": ["exact"]}
    assert "rename from from\nrename to there/to\n" in done["diff"]
    listing = await slot.run("find . -type f | sort; cat a new/b there/to; stat -c %a there/to")
    assert listing.stdout == "./a\n./new/b\n./there/to\none\nTWO\nb\nmoved and changed\n741\n"


async def test_a_patch_of_what_is_not_there_names_it(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("there", "x\n")
    text = "*** Begin Patch\n*** Delete File: there\n*** Update File: missing\n-a\n+b\n*** End Patch"
    result = await call.fails("patch", mode="patch", patch=text)
    assert result.error_kind == "not_found"
    assert "missing" in str(result.data["error"])
    assert await slot.files.exists("there")
    over = "*** Begin Patch\n*** Move File: there -> there2\n*** Move File: there2 -> there3\n*** End Patch"
    await slot.files.write_text("there3", "kept\n")
    assert (await call.fails("patch", mode="patch", patch=over)).error_kind == "exists"
    assert await slot.files.read_text("there3") == "kept\n"


async def test_few_matches_are_a_list_and_more_are_grouped(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("b.txt", "".join(f"needle {n}\n" for n in range(4)))
    few = await call("search_files", pattern="needle")
    assert [match["line"] for match in few["matches"]] == [1, 2, 3, 4]
    assert few["matches"][0] == {"path": "b.txt", "line": 1, "content": "needle 0"}
    await slot.files.write_text("a.txt", "x\nneedle " + "y" * 1_000 + "\n")
    many = await call("search_files", pattern="needle")
    assert many["total_count"] == 5
    assert many["matches_format"].startswith("path-grouped")
    rows = many["matches_text"].split("\n")
    assert rows[0] == "a.txt"
    assert rows[1].startswith("  2: needle yyy")
    assert len(rows[1]) == 505
    assert rows[2:4] == ["b.txt", "  1: needle 0"]


async def test_context_lines_are_shown_once(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "1\n2\nneedle\n4\nneedle\n6\n7\n8\n")
    found = await call("search_files", pattern="needle", context=2)
    assert found["matches_text"] == "a\n  1- 1\n  2- 2\n  3: needle\n  4- 4\n  5: needle\n  6- 6\n  7- 7"


async def test_paths_are_shown_as_they_were_asked_for(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("src/deep/a.py", "needle\n")
    assert (await call("search_files", pattern="needle", path="src"))["matches"][0]["path"] == "src/deep/a.py"
    absolute = await call("search_files", pattern="needle", path=f"{slot.workspace}/src")
    assert absolute["matches"][0]["path"] == f"{slot.workspace}/src/deep/a.py"
    one = await call("search_files", pattern="needle", path="src/deep/a.py")
    assert one["matches"][0]["path"] == "src/deep/a.py"
    assert (await call.fails("search_files", pattern="x", path="missing")).error_kind == "not_found"


async def test_ignored_files_stay_out(call: Caller, slot: Slot) -> None:
    for path, content in {".gitignore": "build/\n", "build/a": "needle\n", "src/a": "needle\n"}.items():
        await slot.files.write_text(path, content)
    await slot.run("mkdir .git", check=True)
    assert (await call("search_files", pattern="needle", output_mode="files_only"))["files"] == ["src/a"]


async def test_the_newest_file_comes_first(call: Caller, slot: Slot) -> None:
    command = "touch -d 2001-01-01 old.py; touch -d 2020-01-01 new.py; touch -d 2010-01-01 mid.py"
    await slot.run(command, check=True)
    assert (await call("search_files", pattern="*.py", target="files"))["files"] == ["new.py", "mid.py", "old.py"]


async def test_the_same_search_in_a_row_is_stopped(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "needle\n")
    for _ in range(2):
        assert "_warning" not in await call("search_files", pattern="needle")
    assert "3 times" in (await call("search_files", pattern="needle"))["_warning"]
    assert (await call.fails("search_files", pattern="needle")).error_kind == "repeated"
    await call("terminal", command="echo needle >> a")
    assert (await call("search_files", pattern="needle"))["total_count"] == 2


MAKE_NAMES = """python3 - <<'end'
import os
os.mkdir(b"d\\xfe")
for name in (b"a\\xff.txt", b"d\\xfe/b\\xfd.txt"):
    with open(name, "w") as file:
        file.write("needle")
end"""


async def test_names_that_are_not_utf8_are_opened_by_what_results_show(toolbox: Toolbox, slot: Slot) -> None:
    await slot.run(MAKE_NAMES, check=True)

    async def call(name: str, arguments: str) -> str:
        result = await toolbox.call(name, arguments)
        assert result.ok, result.content
        return result.content.encode().decode()  # as it is sent and written

    found = await call("search_files", '{"pattern": "needle", "output_mode": "files_only"}')
    assert r'"files": ["a\udcff.txt", "d\udcfe/b\udcfd.txt"]' in found
    for path in json.loads(found)["files"]:
        assert "needle" in await call("read_file", json.dumps({"path": path}))
    assert r"a\udcff.txt" in await call("search_files", '{"pattern": "*.txt", "target": "files"}')
    edit = {"path": "a\udcff.txt", "old_string": "needle", "new_string": "thread"}
    assert r"--- a/a\udcff.txt" in await call("patch", json.dumps(edit))
    await call("write_file", r'{"path": "d\udcfe/new\udcfd", "content": "new"}')
    patch = "*** Begin Patch\n*** Delete File: d\udcfe/b\udcfd.txt\n*** End Patch"
    await call("patch", json.dumps({"mode": "patch", "patch": patch}))
    listed = await slot.files.list(".", recursive=True)
    assert {os.fsencode(entry.path) for entry in listed if entry.is_file} == {b"a\xff.txt", b"d\xfe/new\xfd"}
    assert await slot.files.read_text("a\udcff.txt") == "thread"
