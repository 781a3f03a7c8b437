"""Reading a file of prompts: what is wrong is said with its line before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_batch import read_dataset
from hermes_exec.errors import ConfigError


def write(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def test_prompts_in_order_with_their_lines(tmp_path: Path) -> None:
    named = {"prompt": "b", "id": "B", "check": "true"}
    path = write(tmp_path, {"prompt": "a", "extra": 1}, "", named, "  ", {"prompt": "c"})
    tasks = read_dataset(path)
    read = [(t.index, t.line, t.prompt, t.name) for t in tasks]
    assert read == [(0, 1, "a", "task-0"), (1, 3, "b", "B"), (2, 5, "c", "task-2")]
    assert [t.prompt for t in read_dataset(path, limit=2)] == ["a", "b"]


def test_digest_is_of_what_is_asked_not_of_how_it_is_written(tmp_path: Path) -> None:
    lines = ('{"prompt": "a", "check": "true"}', '{"check":"true", "prompt":"a", "note": 1}', {"prompt": "a"})
    digests = [task.digest for task in read_dataset(write(tmp_path, *lines))]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "line 2: is not JSON"),
        ('["a"]', "line 2: is not a JSON object"),
        ('{"promt": "a"}', "line 2: has no entry prompt.*promt"),
        ('{"prompt": ""}', "line 2: prompt"),
        ('{"prompt": " \\n"}', "line 2: prompt: is blank"),
        ('{"prompt": 3}', "line 2: prompt"),
        ('{"prompt": "a", "check": 1}', "line 2: check"),
        ('{"prompt": "a", "image": "x", "docker_image": "y"}', "line 2: image and docker_image differ"),
        ('{"prompt": "a", "files": {"/etc/x": "1"}}', "line 2: files: '/etc/x' is no path inside"),
        ('{"prompt": "a", "files": {"a/../../x": "1"}}', "line 2: files"),
        ('{"prompt": "a", "files": {"a": 1}}', "line 2: files"),
        ('{"prompt": "a", "tree": "missing"}', "line 2: tree: 'missing' is not a directory"),
        ('{"prompt": "a", "tree": ".."}', "line 2: tree: '..' is not inside"),
        ('{"prompt": "a", "tree": "/etc"}', "line 2: tree: '/etc' is not inside"),
        ('{"prompt": "a", "tree": "link"}', "line 2: tree: 'link' is not inside"),
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


def test_every_wrong_line_counts_even_beyond_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, *["x"] * 12)
    with pytest.raises(ConfigError, match=r"(?s)line 2:.*line 11:.*… and 2 more") as caught:
        read_dataset(path, limit=1)
    assert "line 12" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_file_without_a_prompt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="has no prompt"):
        read_dataset(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: No such file"):
        read_dataset(tmp_path / "nowhere.jsonl")
