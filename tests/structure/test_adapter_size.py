"""An adapter stays small, because everything that backends share is in the runner."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BACKENDS = Path(__file__).resolve().parents[2] / "hermes_exec" / "backends"
LIMITS = {"local": 150, "docker": 1240, "ssh": 800, "singularity": 670, "nomad": 900, "modal": 650}
"""Code lines of a whole folder. Docker's is to be 950, SSH's 650; 200 of Singularity's are the cache of images, 160
of Docker's its builds, 150 of SSH's the choice among several hosts, 250 of Nomad's its second driver, what its
refusals and its servers' absences mean, and directories of its nodes that are closed, and 100 of Modal's the files of
profiles."""
OTHERS = 350
ADAPTERS = sorted(p.parent for p in BACKENDS.glob("*/__init__.py"))


def code_lines(source: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in docstrings)


def imported(path: Path) -> set[str]:
    """The names of the modules of this folder that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hermes_exec.backends"):
            rest = node.module.removeprefix("hermes_exec.backends").strip(".")
            found |= {rest} if rest else {alias.name for alias in node.names}
    return found


def files_of(folder: Path) -> list[Path]:
    """What belongs to an adapter: its folder, and each shared module that nothing else imports."""
    own = sorted(folder.rglob("*.py"))
    needed = set().union(*map(imported, own))
    users = {path: imported(path) for path in BACKENDS.parent.rglob("*.py")}
    for shared in sorted(BACKENDS.glob("*.py")):
        others = [path for path, names in users.items() if shared.stem in names and path not in own]
        if shared.stem in needed and not others:
            own.append(shared)
    return own


def adapter_lines(name: str) -> dict[str, int]:
    """The code lines of an adapter, by file."""
    return {path.name: code_lines(path.read_text("utf-8")) for path in files_of(BACKENDS / name)}


@pytest.mark.parametrize("folder", ADAPTERS, ids=lambda folder: folder.name)
def test_adapter_is_small(folder: Path) -> None:
    lines = adapter_lines(folder.name)
    assert sum(lines.values()) <= LIMITS.get(folder.name, OTHERS), lines


def test_there_are_adapters() -> None:
    assert {"local", "docker"} <= {folder.name for folder in ADAPTERS}


def test_code_lines_counts_code_only() -> None:
    assert code_lines('"""Doc\nstring."""\n\n# why\nx = 1\n\n\ndef f():\n    """Doc."""\n    return x\n') == 3
