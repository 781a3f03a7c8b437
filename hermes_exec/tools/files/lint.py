"""Syntax notes on written files. They inform; nothing is ever refused because of them."""

from __future__ import annotations

import ast
import json
import posixpath
import tomllib
import warnings
from collections.abc import Callable
from types import MappingProxyType

_MAX_CHARS = 128 * 1024
_MAX_BRACKETS = 150


def lint(path: str, text: str) -> dict[str, object] | None:
    """Return `{"status": "ok" | "error" | "skipped", "output" or "message": …}` for JSON, TOML, YAML and Python by
    the file's name, None for others.
    """
    suffix = posixpath.splitext(path)[1].removeprefix(".").lower()
    check = _CHECKS.get(suffix)
    if check is None:
        return None
    if len(text) > _MAX_CHARS:
        return {"status": "skipped", "message": f"longer than {_MAX_CHARS} characters"}
    if _depth(text) > _MAX_BRACKETS:
        return {"status": "skipped", "message": "brackets nested too deeply"}
    try:
        trouble = check(text.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        return {"status": "skipped", "message": "nested too deeply"}
    if trouble is None:
        return {"status": "ok", "output": ""}
    return {"status": "error", "output": trouble, "message": "The file was written as given; this is only a note."}


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
