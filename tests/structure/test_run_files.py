"""What a run writes goes through `hermes_exec.private_files`: only its owner can read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ("envs", "data", "cache.py", "task_images.py", "datasets.py")
"""Of the environments: tasks, images and caches, which hold nothing of a run."""
DIRECTORIES = (ROOT / "hermes_agent", ROOT / "hermes_exec" / "tracing", ROOT / "hermes_exec" / "cli",
           ROOT / "integrations" / "batch", ROOT / "integrations" / "atropos" / "hermes_atropos")  # fmt: skip
FILES = [
    path
    for directory in DIRECTORIES
    for path in directory.rglob("*.py")
    if path.relative_to(directory).parts[0] not in PUBLIC
]
WRITERS = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkstemp", "NamedTemporaryFile"}
OF_A_SLOT = {"files", "slot"}


def writes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that write a file or make a directory without the helper."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name in WRITERS and getattr(inner, "attr", getattr(inner, "id", "")) not in OF_A_SLOT:
            yield call.lineno
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        private = any(word.arg == "opener" for word in call.keywords)
        if name == "open" and not private and any(set(mode) & set("wax+") and len(mode) <= 3 for mode in modes):
            yield call.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_run_files_are_written_by_the_helper(path: Path) -> None:
    found = list(writes(ast.parse(path.read_text("utf-8"))))
    assert not found, f"{path}:{found}: use open(..., opener=open_private) and make_directory"
