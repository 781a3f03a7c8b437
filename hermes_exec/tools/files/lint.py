"""Syntax notes on written files. They only inform; no write is refused because of them."""

from __future__ import annotations

import ast
import json
import posixpath
import tomllib
import warnings
from collections.abc import Callable
from types import MappingProxyType

import anyio.to_thread

from hermes_exec.tools.files.textfile import decode

_MAX_CHARS = 64 * 1024
_MAX_BRACKETS = 150
_MAX_KEY_STEPS = 200_000


async def lint(path: str, text: str) -> dict[str, object] | None:
    """Return `syntax_note` for a file's text, computed in a thread."""
    return await anyio.to_thread.run_sync(syntax_note, path, text) if _checker_for(path) else None


def syntax_note_of_bytes(path: str, data: bytes) -> dict[str, object] | None:
    """Return `syntax_note` for a file's bytes.

    Only as many bytes are decoded as are needed to detect a text that is too long.
    """
    file = decode(data[: 4 * _MAX_CHARS + 8]) if _checker_for(path) else None
    return None if file is None else syntax_note(path, file.readable_text())


def syntax_note(path: str, text: str) -> dict[str, object] | None:
    """Return `{"status": "ok" | "error" | "skipped", "output" or "message": …}` for JSON, TOML, YAML and Python, else
    None.

    The language follows from the file name. The size of the text is limited, because the parsers cannot be interrupted.
    """
    check = _checker_for(path)
    if check is None:
        return None
    if len(text) > _MAX_CHARS:
        return {"status": "skipped", "message": f"longer than {_MAX_CHARS} characters"}
    if _depth(text) > _MAX_BRACKETS:
        return {"status": "skipped", "message": "brackets nested too deeply"}
    if check is _toml and _key_steps(text) > _MAX_KEY_STEPS:
        return {"status": "skipped", "message": "too many dotted keys"}
    try:
        error = check(text.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        return {"status": "skipped", "message": "nested too deeply"}
    if error is None:
        return {"status": "ok", "output": ""}
    return {"status": "error", "output": error, "message": "The file was written as given; this is only a note."}


def _checker_for(path: str) -> Callable[[str], str | None] | None:
    return _CHECKS.get(posixpath.splitext(path)[1].removeprefix(".").lower())


def _key_steps(text: str) -> int:
    """Return an upper bound for the key parts that `tomllib` visits.

    For each part, these are the parts of its table and of the key so far.
    """
    lines = text.split("\n")
    table = max((line.count(".") for line in lines if line.lstrip()[:1] == "["), default=0)
    return sum((table + dots) * (dots + 1) for dots in (line.count(".") for line in lines))


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}" and depth:
            depth -= 1
    return deepest


def _json(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return f"JSON: {error}"
    return None


def _toml(text: str) -> str | None:
    try:
        tomllib.loads(text)
    except ValueError as error:
        return f"TOML: {error}"
    return None


def _yaml(text: str) -> str | None:
    import yaml

    try:
        for _ in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            pass
    except (yaml.YAMLError, ValueError) as error:
        return f"YAML: {error}"
    return None


def _python(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"Python: {error.msg} (line {error.lineno})"
    except ValueError as error:
        return f"Python: {error}"
    return None


_CHECKS: MappingProxyType[str, Callable[[str], str | None]] = MappingProxyType(
    {"json": _json, "toml": _toml, "yaml": _yaml, "yml": _yaml, "py": _python, "pyi": _python}
)
