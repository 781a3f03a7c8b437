"""Each row of the file tools that earlier systems got wrong."""

from __future__ import annotations

import json

import pytest

from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolOptions
from tests.e2e.tools.conftest import Caller


@pytest.mark.parametrize("pattern", ["-f/etc/passwd", "--pre=touch pwned", "-e", "--", "-r"])
async def test_f1_a_pattern_is_never_an_option(call: Caller, slot: Slot, pattern: str) -> None:
    await slot.files.write_text("a.txt", f"root:x\nbefore {pattern} after\n")
    found = await call("search_files", pattern=pattern)
    assert found["total_count"] == 1
    assert found["matches"] == [{"path": "a.txt", "line": 2, "content": f"before {pattern} after"}]
    assert not await slot.files.exists("pwned")


async def test_f2_totals_are_true_and_truncation_is_said(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("many.txt", "needle\n" * 300)
    await slot.files.write_text("more.txt", "needle\n" * 7)
    first = await call("search_files", pattern="needle", limit=10)
    assert (first["total_count"], first["truncated"]) == (307, True)
    assert "offset=10" in first["_hint"]
    last = await call("search_files", pattern="needle", limit=10, offset=300)
    assert last["total_count"] == 307
    assert "truncated" not in last
    counted = await call("search_files", pattern="needle", output_mode="count")
    assert (counted["total_count"], counted["counts"]) == (307, {"many.txt": 300, "more.txt": 7})
    listed = await call("search_files", pattern="needle", output_mode="files_only", limit=1)
    assert (listed["total_count"], listed["files"], listed["truncated"]) == (2, ["many.txt"], True)


async def test_f3_the_directories_of_a_glob_count(call: Caller, slot: Slot) -> None:
    for path in ("src/a.ts", "src/deep/b.ts", "other/c.ts", "d.ts", "src/e.js"):
        await slot.files.write_text(path, "needle\n")
    found = await call("search_files", pattern="src/**/*.ts", target="files")
    assert sorted(found["files"]) == ["src/a.ts", "src/deep/b.ts"]
    assert found["total_count"] == 2
    everywhere = await call("search_files", pattern="*.ts", target="files")
    assert everywhere["total_count"] == 4
    filtered = await call("search_files", pattern="needle", file_glob="src/**/*.ts", output_mode="files_only")
    assert sorted(filtered["files"]) == ["src/a.ts", "src/deep/b.ts"]


@pytest.mark.parametrize("mode", ["replace", "patch"])
async def test_f4_bytes_outside_of_the_edit_stay(call: Caller, slot: Slot, mode: str) -> None:
    before = b"caf\xe9 \x07bell\r\nold\r\nlast\xff without newline"
    await slot.files.write_bytes("real.txt", before, mode=0o754)
    await slot.run(["ln", "-s", "real.txt", "link.txt"], check=True)
    if mode == "replace":
        await call("patch", mode="replace", path="link.txt", old_string="old", new_string="new")
    else:
        text = "*** Begin Patch\n*** Update File: link.txt\n-old\n+new\n*** End Patch"
        await call("patch", mode="patch", patch=text)
    assert await slot.files.read_bytes("real.txt") == before.replace(b"old", b"new")
    assert (await slot.files.stat("real.txt")).mode & 0o777 == 0o754
    linked = await slot.run(["readlink", "link.txt"])
    assert linked.stdout == "real.txt\n"


async def test_f5_total_lines_is_right_without_final_newline(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "one\ntwo\nthree")
    read = await call("read_file", path="a")
    assert (read["content"], read["total_lines"]) == ("1|one\n2|two\n3|three", 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chart.yaml", "{{- if .Values.on }}\na: {{ .Values.a | quote }}\n{{- end }}\n"),
        ("tsconfig.json", '{\n  // comment\n  "strict": true,\n}\n'),
        ("half.toml", "a = "),
        ("bad.py", "def f(:\n"),
    ],
)
async def test_f6_unusual_files_are_written_and_only_noted(call: Caller, slot: Slot, name: str, content: str) -> None:
    written = await call("write_file", path=name, content=content)
    assert written["lint"]["status"] == "error"
    assert await slot.files.read_text(name) == content


async def test_f7_empty_context_lines_count(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "x\nend\n\nx\n\nend\n")
    await call("patch", mode="patch", patch="*** Begin Patch\n*** Update File: a\n x\n\n-end\n+END\n*** End Patch")
    assert await slot.files.read_text("a") == "x\nend\n\nx\n\nEND\n"


async def test_f7_adding_over_an_existing_file_is_refused(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "precious\n")
    result = await call.fails("patch", mode="patch", patch="*** Begin Patch\n*** Add File: a\n+new\n*** End Patch")
    assert result.error_kind == "exists"
    assert await slot.files.read_text("a") == "precious\n"


async def test_f7_nothing_changes_when_the_second_file_does_not_match(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "one\n")
    await slot.files.write_text("b", "two\n")
    text = (
        "*** Begin Patch\n*** Update File: a\n-one\n+ONE\n*** Add File: new/c\n+c\n*** Update File: b\n-missing\n+x\n"
        "*** End Patch"
    )
    result = await call.fails("patch", mode="patch", patch=text)
    assert result.error_kind == "no_match"
    assert result.data["success"] is False
    assert await slot.files.read_text("a") == "one\n"
    assert not await slot.files.exists("new")


async def test_f7_what_was_written_is_taken_back_when_a_later_write_fails(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "one\n")
    await slot.files.write_text("gone", "delete me\n", mode=0o640)
    await slot.files.write_text("from", "move me\n")
    text = (
        "*** Begin Patch\n*** Update File: a\n-one\n+ONE\n*** Delete File: gone\n*** Move File: from -> to/there\n"
        "*** Add File: fresh/b\n+b\n*** Add File: /proc/nowhere/c\n+c\n*** End Patch"
    )
    result = await call.fails("patch", mode="patch", patch=text)
    assert "Nothing was changed" in str(result.data["error"])
    listing = await slot.run("find . -mindepth 1 | sort; cat a gone from; stat -c %a gone")
    assert listing.stdout == "./a\n./from\n./gone\none\ndelete me\nmove me\n640\n"


async def test_f7_the_hint_chooses_between_equal_hunks(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a.py", "def one():\n    return 0\n\n\ndef two():\n    return 0\n")
    hunk = "-    return 0\n+    return 2\n*** End Patch"
    await call("patch", mode="patch", patch=f"*** Begin Patch\n*** Update File: a.py\n@@ def two(): @@\n{hunk}")
    assert await slot.files.read_text("a.py") == "def one():\n    return 0\n\n\ndef two():\n    return 2\n"


async def test_f8_likeness_is_used_only_when_asked_for_and_the_strategy_is_told(call: Caller, slot: Slot) -> None:
    content = "def f():\n    first = 1\n    second = 2\n    return first\n"
    await slot.files.write_text("a.py", content)
    edit = {
        "mode": "replace",
        "path": "a.py",
        "old_string": "def f():\n    first = 100\n    second = 2\n    return first",
        "new_string": "pass",
    }
    result = await call.fails("patch", **edit)
    assert result.error_kind == "no_match"
    assert await slot.files.read_text("a.py") == content
    loose = Toolbox(slot, options=ToolOptions(similarity_patch=True))
    assert (await loose.call("patch", edit)).data["strategy"] == "block_anchor"
    exact = await call("patch", mode="replace", path="a.py", old_string="pass", new_string="go")
    assert exact["strategy"] == "exact"


async def test_f9_documents_are_read_in_the_slot(
    call: Caller, slot: Slot, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host = tmp_path_factory.mktemp("host") / "note.ipynb"
    book = json.dumps({"cells": [{"cell_type": "code", "source": "secret_of_the_host"}]})
    host.write_text(book)
    result = await call.fails("read_file", path=str(host))
    assert "secret_of_the_host" not in result.content
    await slot.files.write_text("note.ipynb", book.replace("secret_of_the_host", "of_the_slot"))
    assert "of_the_slot" in (await call("read_file", path="note.ipynb"))["content"]


async def test_f10_changes_are_seen_by_the_slots_content_not_by_clocks(call: Caller, slot: Slot) -> None:
    await slot.files.write_text("a", "one\n")
    assert (await call("read_file", path="a"))["content"] == "1|one"
    assert (await call("read_file", path="a"))["status"] == "unchanged"
    await slot.run("touch -r a stamp; printf 'two\\n' > a; touch -r stamp a", check=True)
    assert (await call("read_file", path="a"))["content"] == "1|two"
    await slot.run("touch -r a stamp; printf 'six\\n' > a; touch -r stamp a", check=True)
    assert "changed by someone else" in (await call("write_file", path="a", content="mine\n"))["_warning"]
    assert "_warning" not in await call("write_file", path="a", content="mine again\n")
    await slot.run("touch -d '2001-01-01' a", check=True)
    assert "_warning" not in await call("write_file", path="a", content="third\n")


@pytest.mark.parametrize("first", ["terminal", "read_file", "write_file", "search_files"])
async def test_f11_the_slot_is_the_same_whichever_tool_comes_first(first: str) -> None:
    arguments = {
        "terminal": {"command": "true"},
        "read_file": {"path": "missing"},
        "write_file": {"path": "x", "content": ""},
        "search_files": {"pattern": "x"},
    }
    async with SandboxPool("local", env={"FROM_POOL": "1"}) as pool, pool.slot() as slot:
        toolbox = Toolbox(slot)
        await toolbox.call(first, arguments[first])
        seen = await Caller(toolbox).sh("echo $FROM_POOL; pwd; echo $HOME; umask")
        direct = await slot.run("echo $FROM_POOL; pwd; echo $HOME; umask")
    assert seen == direct.stdout
    assert seen.startswith("1\n")


async def test_f12_an_operation_is_few_requests(call: Caller, slot: Slot, pool: SandboxPool) -> None:
    await call("write_file", path="a.txt", content="one\n")
    costs = {}
    for name, arguments in {
        "write_file": {"path": "a.txt", "content": "two\n"},
        "read_file": {"path": "a.txt"},
        "patch": {"mode": "replace", "path": "a.txt", "old_string": "two", "new_string": "three"},
        "search_files": {"pattern": "three"},
    }.items():
        before = pool.stats().calls
        await call(name, **arguments)
        costs[name] = pool.stats().calls - before
    assert costs["write_file"] <= 2
    assert costs["read_file"] <= 2
    assert costs["patch"] <= 2
    assert costs["search_files"] <= 1
    assert slot.id


async def test_f13_every_result_is_one_json_text(toolbox: Toolbox, slot: Slot) -> None:
    await slot.files.write_text("many.txt", "needle\n" * 100)
    for name, arguments in (
        ("search_files", {"pattern": "needle", "limit": 5}),
        ("search_files", {"pattern": "needle", "limit": 2}),
        ("read_file", {"path": "many.txt", "limit": 5}),
        ("terminal", {"command": "ls"}),
        ("patch", {"mode": "replace", "path": "many.txt", "old_string": "x", "new_string": "y"}),
        ("process", {"action": "list"}),
        ("nothing", {}),
    ):
        result = await toolbox.call(name, arguments)
        assert json.loads(result.content) == result.data
