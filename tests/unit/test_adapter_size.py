"""An adapter stays small, because everything that backends share is in the runner."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BACKENDS = Path(__file__).resolve().parents[2] / "hermes_exec" / "backends"
LARGEST_ADAPTER = 220
SHARED = {"__init__", "base", "registry"}
ADAPTERS = sorted(p for p in BACKENDS.glob("*.py") if p.stem not in SHARED)


def code_lines(source: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in docstrings)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_adapter_is_small(path: Path) -> None:
    assert code_lines(path.read_text("utf-8")) <= LARGEST_ADAPTER


def test_there_are_adapters() -> None:
    assert {"local", "docker"} <= {path.stem for path in ADAPTERS}


def test_code_lines_counts_code_only() -> None:
    assert code_lines('"""Doc\nstring."""\n\n# why\nx = 1\n\n\ndef f():\n    """Doc."""\n    return x\n') == 3
