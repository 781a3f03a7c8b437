"""Digests that identify the content of a prompt, however its row is written and wherever it stands in the data set."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

GROUP_DIGITS = 32
"""The number of hexadecimal digits of a group."""
_EARLIER_ENTRIES = frozenset(
    {
        *("prompt", "messages", "id", "image", "docker_image", "cwd", "tree", "files"),
        *("check", "check_files", "score_in", "keep"),
    }
)
"""The entries of a row in versions without groups."""
_UNCOUNTED_ENTRIES = frozenset({"id", "metadata", "solution"})
"""The entries that neither the model nor the score depends on."""
_CHUNK_BYTES = 1 << 20


def _encode_other(value: object) -> str:
    """Return a value of a table that JSON does not have, such as bytes or a date, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


_encode = json.JSONEncoder(sort_keys=True, default=_encode_other).encode


def digest_content(entries: Mapping[str, object], tree: str | None = None) -> str:
    """Return the digest of a row, which is equal for all ways to write its content, in any order.

    Args:
        entries: The entries without nulls. `id`, `metadata` and `solution` do not count.
        tree: The digest of the row's tree, which stands in place of its name.
    """
    content = {
        name: _unify_number(value) if isinstance(value, float) else value
        for name, value in entries.items()
        if name not in _UNCOUNTED_ENTRIES
    }
    if tree is not None:
        content["tree"] = tree
    text = _encode(content)
    if "null" in text:
        text = _encode({name: _drop_nulls(value) for name, value in content.items()})
    return _digest(f"prompt{text}")


def digest_line(row: Mapping[str, object]) -> str:
    """Return the digest that versions without groups wrote: of their entries, with the name of a tree.

    Args:
        row: The row as it was read.
    """
    return _digest(_encode({name: value for name, value in row.items() if name in _EARLIER_ENTRIES}))


def _unify_number(value: float) -> float:
    """Return an integer for a whole float: tables have columns of floats for integers."""
    return int(value) if value.is_integer() else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:GROUP_DIGITS]


def _drop_nulls(value: object) -> object:
    """Return the value without null entries of objects, which table writers add."""
    if isinstance(value, dict):
        return {name: _drop_nulls(part) for name, part in value.items() if part is not None}
    return [_drop_nulls(part) for part in value] if isinstance(value, list) else value


class TreeDigests:
    """Computes the digests of directories, each once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def digest_tree(self, tree: Path) -> str:
        """Return the digest of a directory: the paths, contents, targets of links and execute bits of its files.

        Raises:
            ValueError: If a file cannot be read.
        """
        if tree not in self._known:
            try:
                self._known[tree] = _digest(_encode(_list_tree(tree)))
            except OSError as error:
                raise ValueError(f"tree: cannot read {error.filename}: {error.strerror or error}") from error
        return self._known[tree]


def _list_tree(tree: Path) -> list[list[str]]:
    entries: list[list[str]] = []
    pending = [tree]
    while pending:
        directory = pending.pop()
        for entry in os.scandir(directory):
            path, facts = Path(entry.path), entry.stat(follow_symlinks=False)
            name = os.fsencode(path.relative_to(tree)).hex()
            if stat.S_ISDIR(facts.st_mode):
                entries.append([name, "directory"])
                pending.append(path)
            elif stat.S_ISLNK(facts.st_mode):
                entries.append([name, "link", os.fsencode(path.readlink()).hex()])
            elif stat.S_ISREG(facts.st_mode):
                entries.append([name, "program" if facts.st_mode & stat.S_IXUSR else "file", _digest_file(path)])
    return sorted(entries)


def _digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
