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
_CHUNK_BYTES = 1 << 20


def _encode_other(value: object) -> str:
    """Return a value of a table that JSON does not have, such as bytes or a date, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


_encode = json.JSONEncoder(sort_keys=True, default=_encode_other).encode


class RowContent:
    """The content of a row, for its two digests.

    Args:
        row: The row as it was read.
        entries: Its entries without nulls. `metadata` does not count.
    """

    def __init__(self, row: Mapping[str, object], entries: Mapping[str, object]) -> None:
        self._row, self._entries = row, {name: value for name, value in entries.items() if name != "metadata"}
        self._texts = {name: _encode(value) for name, value in row.items() if name in _EARLIER_ENTRIES}

    def digest_line(self) -> str:
        """Return the digest that versions without groups wrote: of their entries, with the name of a tree."""
        return _digest(_join(self._texts))

    def digest(self, tree: str | None = None) -> str:
        """Return the digest of the entries without `id`, in any order.

        Args:
            tree: The digest of the row's tree, which stands in place of its name.
        """
        texts = {name: self._encode_entry(name, value) for name, value in self._entries.items() if name != "id"}
        if tree is not None:
            texts["tree"] = _encode(tree)
        return _digest("prompt" + _join(texts))

    def _encode_entry(self, name: str, value: object) -> str:
        if isinstance(value, float) and value.is_integer():
            return str(int(value))  # tables have columns of floats for integers
        text = self._texts.get(name) if value is self._row.get(name) else None
        text = _encode(value) if text is None else text
        return _encode(_drop_nulls(value)) if "null" in text else text


def _join(texts: Mapping[str, str]) -> str:
    """Return the JSON text of an object, as `json.dumps` with sorted keys writes it."""
    return "{" + ", ".join(f'"{name}": {text}' for name, text in sorted(texts.items())) + "}"


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
