"""Adapters of backends have one shape. They, and adapters of other ecosystems, stay small: the core has the rest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ROOT / "hermes_exec" / "backends"
REQUIRED = {"__init__.py", "config.py", "backend.py", "sandbox.py"}
"""What an adapter has. Further modules are free: each is named by the noun that it is about."""
MAX_LINES = 250
ADAPTERS = sorted(path.parent for path in BACKENDS.glob("*/__init__.py"))
DOORS = [
    path for path in sorted(ROOT.glob("integrations/*/hermes_*")) if path.name not in {"hermes_atropos", "hermes_batch"}
]
"""Adapters of other ecosystems."""
MODULES = sorted(module for directory in (BACKENDS, *DOORS) for module in directory.rglob("*.py"))


def code_lines(source: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in docstrings)


def adapter_lines(name: str) -> int:
    """Code lines of an adapter."""
    return sum(code_lines(path.read_text("utf-8")) for path in (BACKENDS / name).rglob("*.py"))


@pytest.mark.parametrize("directory", ADAPTERS, ids=lambda directory: directory.name)
def test_adapter_has_required_modules(directory: Path) -> None:
    assert REQUIRED - {path.name for path in directory.iterdir()} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_of_adapters_is_small(path: Path) -> None:
    assert code_lines(path.read_text("utf-8")) <= MAX_LINES


def test_adapters_exist() -> None:
    assert {"local", "docker"} <= {directory.name for directory in ADAPTERS}
    assert "hermes_mcp" in {directory.name for directory in DOORS}


def test_code_lines_counts_code_only() -> None:
    assert code_lines('"""Doc\nstring."""\n\n# why\nx = 1\n\n\ndef f():\n    """Doc."""\n    return x\n') == 3
