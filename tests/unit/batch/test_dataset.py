"""Reading a file of prompts: what is wrong is said with its line before anything is started."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hermes_batch import BatchConfig, read_dataset
from hermes_batch.units import Unit
from hermes_exec.errors import ConfigError


def write(directory: Path, *lines: object) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def test_prompts_in_order_with_their_lines(tmp_path: Path) -> None:
    named = {"prompt": "b", "id": "B", "check": "true"}
    path = write(tmp_path, {"prompt": "a"}, "", named, "  ", {"prompt": "c"})
    tasks = read_dataset(path)
    read = [(t.index, t.place, t.prompt, t.name) for t in tasks]
    assert read == [(0, "line 1", "a", "task-0"), (1, "line 3", "b", "B"), (2, "line 5", "c", "task-2")]


def test_digest_is_of_what_is_asked_not_of_how_it_is_written(tmp_path: Path) -> None:
    lines = ('{"prompt": "a", "check": "true"}', '{"check":"true", "prompt":"a", "metadata": {}}', {"prompt": "a"})
    digests = [task.digest for task in read_dataset(write(tmp_path, *lines))]
    assert digests[0] == digests[1] != digests[2]


def test_digests_stay_those_of_earlier_runs(tmp_path: Path) -> None:
    rich = r"""{"prompt": "né \"quoted\" null", "id": "A", "max_turns": 3.0, "deadline_s": 1.5,
        "network": false, "cwd": null, "check": "true", "check_files": {"c": null, "d": {"base64": "AA=="}},
        "keep": ["s.py"], "sampling": {"temperature": 1.0, "seed": null},
        "files": "{\"x\": \"1\"}", "metadata": {"a": 1}}"""
    plain = {"messages": [{"role": "user", "content": "a", "name": None}], "toolsets": ["file"]}
    assert [(task.group, task.digest) for task in read_dataset(write(tmp_path, rich.replace("\n", ""), plain))] == [
        ("deb923359e27141d4c902e8014151876", "eb6319506696697d4958912f333693a8"),
        ("66a06e0e6d457b460de79b10ed2c11b0", "6d7f2c978b04bab77d34368905b40878"),
    ]


def groups_of(directory: Path, *lines: object) -> list[str]:
    return [task.group for task in read_dataset(write(directory, *lines))]


def test_group_is_the_content_of_the_prompt(tmp_path: Path) -> None:
    row = {"prompt": "a", "check": "true", "files": {"x": "1"}}
    same = {
        "metadata": {"n": 1},
        "solution": "touch made",
        "files": {"y": None, "x": "1"},
        "check": "true",
        "prompt": "a",
        "id": "A",
        "cwd": None,
    }
    first, second, other = groups_of(tmp_path, row, same, {**row, "check": "false"})
    assert (len(first), second) == (32, f"{first}-1")
    assert first != other
    assert groups_of(tmp_path, other_row := {**row, "check": "false"}, same) == [other, first]
    assert groups_of(tmp_path, *[other_row] * 3) == [other, f"{other}-1", f"{other}-2"]


def test_group_follows_the_content_of_a_tree(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("x")
        (tmp_path / name / "link").symlink_to("sub/file")
    rows = [{"prompt": "a", "tree": name} for name in ("one", "two")]
    first, second = groups_of(tmp_path, *rows)
    assert second == f"{first}-1"
    (tmp_path / "two" / "sub" / "file").chmod(0o755)
    assert first != (changed := groups_of(tmp_path, *rows)[1])
    assert not changed.startswith(first)
    (tmp_path / "two" / "sub" / "file").chmod(0o644)
    (tmp_path / "two" / "link").unlink()
    (tmp_path / "two" / "link").symlink_to("sub")
    assert not groups_of(tmp_path, *rows)[1].startswith(first)
    (tmp_path / "two" / "sub" / "file").write_text("y")
    assert groups_of(tmp_path, rows[0])[0] == first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "line 2: is not JSON"),
        ('["a"]', "line 2: is not a JSON object"),
        ('{"promt": "a"}', "line 2: has an unknown entry 'promt'; did you mean 'prompt'"),
        (
            '{"prompt": "a", "chek": "true"}',
            "line 2: has an unknown entry 'chek'; did you mean .check.*--field ENTRY=chek .*--extra metadata",
        ),
        ('{"prompt": "a", "line": 1}', "line 2: has an unknown entry 'line'"),
        ('{"check": "true"}', r"line 2: has no entry prompt or messages \(it has check\)"),
        ('{"prompt": null}', r"line 2: has no entry prompt or messages \(it has none; an empty or null entry counts"),
        ('{"prompt": "a", "prompt": "b"}', "line 2: has the entry 'prompt' twice"),
        ('{"prompt": "a", "files": {"x": "1", "y": "1", "y": "2"}}', "line 2: has the entry 'y' twice"),
        ('{"prompt": "a", "id": true}', "line 2: id"),
        ('{"prompt": "a", "id": 1.5}', "line 2: id"),
        ('{"prompt": "a", "metadata": ["x"]}', "line 2: metadata"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "line 2: give either prompt or messages"),
        ('{"prompt": ""}', "line 2: prompt"),
        ('{"prompt": " \\n"}', "line 2: prompt: is blank"),
        ('{"prompt": 3}', "line 2: prompt"),
        ('{"prompt": "a", "check": 1}', "line 2: check"),
        ('{"prompt": "a", "image": "x", "docker_image": "y"}', "line 2: image and docker_image differ"),
        ('{"prompt": "a", "files": {"/etc/x": "1"}}', "line 2: files: '/etc/x' is not a path inside"),
        ('{"prompt": "a", "files": {"a/../../x": "1"}}', "line 2: files"),
        ('{"prompt": "a", "files": {".": "1", "a": "2"}}', r"line 2: files: '\.' is not a path inside"),
        ('{"prompt": "a", "files": {"a": 1}}', "line 2: files"),
        (
            '{"prompt": "a", "files": {"a/b/c": "1", "a": "2"}}',
            "line 2: files: 'a' is a file and the directory of 'a/b/c'",
        ),
        (
            '{"prompt": "a", "check": "true", "check_files": {"a/b": "1", "a/b/c": "2"}}',
            "line 2: check_files: 'a/b' is a file and the directory of 'a/b/c'",
        ),
        ('{"prompt": "a", "files": {"\\ud83d": "1"}}', "line 2: files: .* has an unpaired surrogate"),
        ('{"prompt": "a", "tree": "missing"}', "line 2: tree: 'missing' is not a directory"),
        ('{"prompt": "a", "tree": ".."}', "line 2: tree: '..' is not inside"),
        ('{"prompt": "a", "tree": "/etc"}', "line 2: tree: '/etc' is not inside"),
        ('{"prompt": "a", "tree": "link"}', "line 2: tree: 'link' is not inside"),
        ('{"prompt": "a", "files": {"f": "\\ud83d"}}', r"line 2: files: 'f' has an unpaired surrogate"),
        ('{"prompt": "a", "metadata": {"x": NaN}}', "line 2: has the number NaN"),
        ('{"prompt": "a", "metadata": {"x": -Infinity}}', "line 2: has the number -Infinity"),
        ('{"prompt": "a", "metadata": {"x": 1e999}}', "line 2: has the number 1e999"),
        ("[" * 100_000, "line 2: is nested too deeply|line 2: is not JSON"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ConfigError, match=message):
        read_dataset(write(tmp_path, {"prompt": "a"}, line))


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(ConfigError, match="line 2: is not UTF-8"):
        read_dataset(path)


def test_compressed_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 3))
    with pytest.raises(ConfigError, match=r"is wrong:\nthe file: is compressed with gzip; unpack it first: gunzip"):
        read_dataset(path)


def test_every_wrong_line_counts_even_beyond_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, *[{f"x{n}": 1} for n in range(12)])
    with pytest.raises(ConfigError, match=r"(?s)line 2:.*line 11:.*… and 2 more") as caught:
        read_dataset(path)
    assert "line 12" not in str(caught.value)


def test_equal_errors_are_one_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"question": "a"}, *[{"question": "a"}] * 11, {"prompt": 1}, {"question": "b"}, {"prompt": 2}
    )
    with pytest.raises(ConfigError) as caught:
        read_dataset(path)
    _, unknown, wrong = str(caught.value).splitlines()
    assert unknown.startswith("line 1, line 2, line 3, line 4, line 5 and 8 more rows: has an unknown entry 'question'")
    assert wrong.startswith("line 13, line 15: prompt: ")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_file_without_a_prompt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="has no prompt"):
        read_dataset(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: No such file"):
        read_dataset(tmp_path / "nowhere.jsonl")


def test_unknown_entries_are_kept_as_metadata_where_that_is_asked(tmp_path: Path) -> None:
    rows = ({"prompt": "a", "chek": None, "metadata": {"x": 1}}, {"prompt": "a"})
    tasks = read_dataset(write(tmp_path, *rows), extra="metadata")
    assert [task.metadata for task in tasks] == [{"x": 1, "chek": None}, {}]
    assert tasks[0].digest == tasks[1].digest
    with pytest.raises(ConfigError, match="line 1: has the entry 'x' both in metadata and outside it"):
        read_dataset(write(tmp_path, {"prompt": "a", "x": 2, "metadata": {"x": 1}}), extra="metadata")


def test_ids_may_be_integers_and_null_is_nothing(tmp_path: Path) -> None:
    nulls = {"id": None, "files": None, "check": None, "check_files": None, "messages": None, "metadata": None}
    tasks = read_dataset(write(tmp_path, {"prompt": "a", "id": 7}, {"prompt": "b", **nulls}))
    assert [(task.name, task.files, task.metadata) for task in tasks] == [("7", {}, {}), ("task-1", {}, {})]


def test_nulls_of_tables_are_nothing(tmp_path: Path) -> None:
    function = {"name": "terminal", "arguments": "{}", "description": None}
    text = {"type": "text", "text": "a", "image_url": None}
    messages = [
        {"role": "user", "content": [text]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "index": None, "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    files = {"files": {"a": "1", "b": None}, "check_files": {"c": None}, "check": "true"}
    (task,) = read_dataset(write(tmp_path, {"messages": messages, **files}))
    assert (task.files, task.check_files) == ({"a": "1"}, {})
    user, assistant, _ = task.beginning
    assert user["content"] == [{"type": "text", "text": "a"}]
    call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    assert assistant["tool_calls"] == [call]


@pytest.mark.parametrize("form", ["lines", "array"])
def test_byte_order_mark_is_no_content(tmp_path: Path, form: str) -> None:
    rows = [{"prompt": "a"}, {"prompt": "é"}]
    text = json.dumps(rows) if form == "array" else "\r\n".join(json.dumps(row) for row in rows)
    path = tmp_path / "prompts.json"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [task.prompt for task in read_dataset(path)] == ["a", "é"]


def test_array_has_its_rows_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text('\n [\n{"prompt": "a"},\n\n{"prompt":\n"b"}, {"prompt": "c"}\n]\n')
    assert [(task.index, task.place, task.prompt) for task in read_dataset(path)] == [
        (0, "line 3", "a"),
        (1, "line 5", "b"),
        (2, "line 6", "c"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"prompt": "a"},\n{"prompt": 1},\n"x"]', r"(?s)line 3: prompt.*\nline 4: is not a JSON object"),
        ('[{"prompt": "a"}\n{"prompt": "b"}]', "line 2: is not JSON: Expecting ',' or ']'"),
        ('[{"prompt": "a"},\n', "line 2: is not JSON"),
        ('[{"prompt": "a"}]\n{"prompt": "b"}', "line 2: is not JSON: Extra data after the array"),
        ('[{"prompt": "a"},\n{"id": 1, "id": 2}]', "line 2: has the entry 'id' twice"),
        ("[]", "has no prompt"),
        ("[" * 100_000, "line 1: is"),
        ('[{"prompt": "a"},\n{"prompt": "\udcff"}]', "line 2: is not UTF-8"),
    ],
)
def test_wrong_arrays_are_told_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        read_dataset(path)


USER = {"role": "user", "content": "go"}
CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}
SEEN = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]


def test_messages_begin_the_conversation(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, USER, CALLING, RESULT, {"role": "user", "content": SEEN}]
    (task,) = read_dataset(write(tmp_path, {"messages": messages}))
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert task.beginning == [*messages[:2], calling, *messages[3:]]
    config = BatchConfig(dataset=tmp_path, out=tmp_path, model="m", system_prompt="run")
    assert config.make_rollout(Unit(task)).messages == task.beginning
    (task,) = read_dataset(write(tmp_path, {"messages": [USER]}))
    assert config.make_rollout(Unit(task)).messages == [{"role": "system", "content": "run"}, USER]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "are empty"),
        ({}, ""),
        (["go"], ""),
        ([{"content": "go"}], "message 1 has the role None"),
        ([{"role": "asistant", "content": "go"}], "message 1 has the role 'asistant'; did you mean 'assistant'"),
        ([{**USER, "contnt": "x"}], "message 1 has an unknown entry 'contnt'; did you mean 'content'"),
        ([{"role": "user"}], "message 1 has no content"),
        ([{"role": "user", "content": 3}], "message 1 has content that is neither"),
        ([{"role": "system", "content": SEEN}, USER], "message 1 has a content part that is neither"),
        ([{"role": "user", "content": "  "}], "end with a blank message"),
        ([{"role": "user", "content": "a\0b"}], "message 1 has a NUL byte"),
        ([USER, {"role": "assistant", "content": "done"}], "must end with a message of the user or a tool"),
        ([{"role": "system", "content": "go"}], "must end with a message of the user or a tool"),
        ([USER, CALLING], "have no result of the call 'c1'"),
        ([USER, CALLING, USER], "message 3 comes before the result of the call 'c1'"),
        ([USER, RESULT], "message 2 is a result without a call before it: 'c1'"),
        ([USER, CALLING, RESULT, RESULT], "message 4 is a result without a call before it"),
        ([USER, CALLING, {"role": "tool", "content": "x"}], "message 3 has no tool_call_id"),
        ([USER, {**CALLING, "tool_calls": {}}], "message 2 has tool_calls that are not a list"),
        ([USER, {**CALLING, "tool_calls": [{"id": "a"}]}], "message 2 has a call without an id and a function"),
        (
            [USER, {**CALLING, "tool_calls": [{**CALL, "function": {"name": "x", "arguments": {}}}]}, RESULT],
            "message 2 has a call whose arguments are not the text of a JSON object",
        ),
    ],
)
def test_wrong_messages_are_told(tmp_path: Path, messages: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1: messages.*{message}"):
        read_dataset(write(tmp_path, {"messages": messages}))
