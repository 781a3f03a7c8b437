"""Small pieces of text: control sequences, exit codes, notes on syntax, diffs, blocks for long results, host tools."""

from __future__ import annotations

import difflib
import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.errors import ConfigError
from hermes_exec.tools.call.budget import file_name, format_result, spill_block
from hermes_exec.tools.call.coercion import coerce_arguments
from hermes_exec.tools.catalog.host_tools import HostTool, tool
from hermes_exec.tools.files.lint import syntax_note, syntax_note_of_bytes
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.patch.diff import file_diff
from hermes_exec.tools.state.file_views import FileViews, Page, Repetition
from hermes_exec.tools.terminal.ansi import strip_ansi
from hermes_exec.tools.terminal.exit_codes import exit_code_meaning


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bx\x1b=\x1b[?25l", "x"),
        ("bell\x07 tab\t cr\r", "bell\x07 tab\t cr\r"),
        ("[0m stays", "[0m stays"),
    ],
)
def test_control_sequences_are_taken_out(text: str, plain: str) -> None:
    assert strip_ansi(text) == plain


@given(st.text(alphabet=st.characters(exclude_characters="\x1b\x9b")))
def test_text_without_escapes_stays(text: str) -> None:
    assert strip_ansi(text) == text


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("grep x f", 1, "No matches"),
        ("cat f | LC_ALL=C /usr/bin/grep -q x", 1, "No matches"),
        ("diff a b", 1, "Files differ"),
        ("[ -f x ]", 1, "false"),
        ("cd x && test -d y", 1, "false"),
        ("curl http://x", 7, "Failed to connect"),
        ("git diff --exit-code", 1, "often normal"),
        ("pkill -f server.py; sleep 1; python server.py", 143, "[n]ame"),
        ("cd app && pkill -9 -f 'app --port'", 137, "[n]ame"),
    ],
)
def test_exit_codes_are_explained(command: str, code: int, told: str) -> None:
    assert told in (exit_code_meaning(command, code) or "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("grep x f", 0),
        ("grep x f", 2),
        ("python x", 1),
        ("", 1),
        ("A=1", 1),
        ("pkill -f x", 1),
        ("pkill x", 143),
        ("x", 143),
    ],
)
def test_other_exit_codes_are_not(command: str, code: int) -> None:
    assert exit_code_meaning(command, code) is None


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("a.json", '{"a": 1}', "ok"),
        ("a.json", "{// comment\n}", "error"),
        ("a.toml", "a = 1", "ok"),
        ("a.toml", "a = ", "error"),
        ("a.yaml", "a: 1\n---\nb: 2", "ok"),
        ("a.yml", "{{ .Values.x }}: {{", "error"),
        ("a.py", "print('x')", "ok"),
        ("a.py", "def f(:", "error"),
        ("a.py", "(" * 5_000 + ")" * 5_000, "skipped"),
        ("a.json", "[" * 100_000, "skipped"),
        ("a.json", '"' + "x" * 200_000 + '"', "skipped"),
        ("a.py", "-" * 60_000 + "1", "skipped"),
        ("a.py", "x\n" * 60_000, "skipped"),
        ("a.toml", "a" + ".a" * 17_000 + "=1", "skipped"),
        ("a.toml", "[a" + ".a" * 1_000 + "]\n" + "".join(f"b{number}.c=1\n" for number in range(1_000)), "skipped"),
        ("a.toml", "a = [" + "0.5, " * 400 + "]", "ok"),
        ("a.toml", "".join(f"[tool.a{number}.b]\nc.d = 'x.y'\n" for number in range(1_000)), "ok"),
    ],
)
def test_syntax_is_noted(name: str, text: str, status: str) -> None:
    for note in (syntax_note(name, text), syntax_note_of_bytes(name, text.encode())):
        assert note is not None
        assert note["status"] == status


def test_other_files_have_no_note() -> None:
    assert syntax_note("a.txt", "{") is None
    assert syntax_note("Makefile", "{") is None
    assert syntax_note_of_bytes("a.py", b"\0") is None


lines = st.lists(st.text(alphabet="ab", max_size=2), max_size=25)


@given(lines, lines)
def test_the_diff_is_the_usual_unified_diff(before: list[str], after: list[str]) -> None:
    old, new = "".join(line + "\n" for line in before), "".join(line + "\n" for line in after)
    mine = file_diff("f", old.encode(), new.encode())
    changed = [row for row in mine.splitlines() if row[:1] in "+-" and not row.startswith(("--- ", "+++ "))]
    usual = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm=""))
    if old == new:
        assert mine == ""
        return
    rebuilt = patched(old.splitlines(), mine)
    assert rebuilt == new.splitlines()
    assert len(changed) >= 1
    assert usual


def patched(old: list[str], diff: str) -> list[str]:
    """Apply a unified diff, trusting only its line numbers."""
    result: list[str] = []
    position = 0
    for row in diff.splitlines()[2:]:
        if row.startswith("@@"):
            start, _, count = row.split()[1][1:].partition(",")
            begin = int(start) - (0 if count == "0" else 1)
            result += old[position:begin]
            position = begin
        elif row.startswith("+"):
            result.append(row[1:])
        else:
            assert old[position] == row[1:]
            position += 1
            if row.startswith(" "):
                result.append(row[1:])
    return result + old[position:]


def test_diffs_of_new_gone_binary_and_huge_files() -> None:
    assert file_diff("f", None, b"a\n") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"
    assert file_diff("f", b"a", None) == "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n"
    assert "Binary" in file_diff("f", b"\0", b"\0\0")
    assert "too many to show" in file_diff("f", b"a\n" * 3_000, b"b\n" * 3_000)
    assert len(file_diff("f", None, b"line\n" * 3_900, limit_chars=1_000)) < 1_200


def test_a_long_result_becomes_a_block_with_a_preview_and_the_path() -> None:
    text = "".join(f"line {i}\n" for i in range(20_000))
    block = spill_block(text, "/tmp/hermes-results/c1.txt", 1_500)
    assert block.startswith("<persisted-output>\n")
    assert block.endswith("\n</persisted-output>")
    assert "Full output saved to: /tmp/hermes-results/c1.txt" in block
    assert f"({len(text):,} characters" in block
    assert 1_400 < len(block) < 2_100


@pytest.mark.parametrize("call_id", ["../../etc/passwd", "a/b", "..", "", "x" * 500, "call\n1", "é"])
def test_a_call_id_never_leaves_the_results_directory(call_id: str) -> None:
    name = file_name(call_id)
    assert "/" not in name
    assert name not in (".", "..", ".txt")
    assert len(name) <= 124


def test_a_readable_result_can_be_paged() -> None:
    text = format_result({"exit_code": 0, "output": "one\ntwo\n", "rows": [{"a": 1}, {"b": 2}]})
    assert text == 'exit_code: 0\n=== output ===\none\ntwo\n\n=== rows ===\n{"a": 1}\n{"b": 2}\n'


def test_a_host_tool_says_that_it_runs_on_the_host() -> None:
    @tool
    def look_up(word: str, count: int = 3, tags: list[str] | None = None) -> dict[str, object]:
        """Look a word up."""
        return {"word": word, "count": count, "tags": tags}

    assert isinstance(look_up, HostTool)
    function = look_up.schema["function"]
    assert isinstance(function, dict)
    assert function["description"] == "Look a word up. (Runs on the host, outside of the slot.)"
    assert look_up.runs_on == look_up.schema["runs_on"] == "host"
    assert look_up.timeout_s == 300
    with pytest.raises(ConfigError, match="timeout_s"):
        tool(timeout_s=0)(look_up.function)
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "count": {"type": "integer", "default": 3},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["word"],
        "additionalProperties": False,
    }


def test_host_tool_example_fits_its_parameters() -> None:
    @tool
    def copy(paths: list[str], mode: Literal["all", "new"], depth: int, dry: bool, note: str = "") -> None:
        """Copy files."""

    assert isinstance(copy, HostTool)
    arguments = json.loads(copy.example)
    assert arguments == {"paths": ["…"], "mode": "all", "depth": 1, "dry": True}
    assert coerce_arguments(copy.parameters, arguments).items() >= arguments.items()


@pytest.mark.parametrize("odd", [{"required": ["a"]}, {"required": ["a"], "properties": {"a": 5}}, {"properties": 5}])
def test_host_tool_takes_any_schema(odd: dict[str, object]) -> None:
    declared = tool(parameters=odd)(len)
    assert json.loads(declared.example) == ({"a": "…"} if "required" in odd else {})


def test_a_host_tool_without_types_is_refused() -> None:
    with pytest.raises(ConfigError, match="annotation"):

        @tool
        def bad(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
            pass


def test_budgets_scale_with_the_context_window() -> None:
    small = ToolOptions().for_context_window(40_000)
    assert (small.result_limit_chars, small.turn_limit_chars) == (8_000, 16_000)
    assert ToolOptions().for_context_window(10_000_000) == ToolOptions()
    with pytest.raises(ConfigError):
        ToolOptions(preview_chars=0)


def test_views_notice_changes_and_repeats() -> None:
    views = FileViews()
    assert not views.has_changed("/a", b"1")
    views.record("/a", b"1")
    assert not views.has_changed("/a", b"1")
    assert views.has_changed("/a", b"2")
    assert views.has_changed("/a", None)
    page = Page("/a", 1, 500)
    assert [views.count_repeats(page, b"1"), views.count_repeats(page, b"1"), views.count_repeats(page, b"2")] == [
        0,
        1,
        0,
    ]
    searches = Repetition()
    assert [searches.count("x", b"1"), searches.count("x", b"1"), searches.count("x", b"2")] == [1, 2, 1]
