"""Imports run one way: errors, config ← backends ← channel ← slot, pool ← tools ← hermes_agent ← hermes_batch, cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {
    **dict.fromkeys(("errors", "results", "config", "runner_binary", "streams"), 0),
    "backends": 1,
    "channel": 2,
    **dict.fromkeys(("slot", "plan", "pool", "blocking"), 3),
    **dict.fromkeys(("tools", "testing"), 4),
    "hermes_agent": 5,
    **dict.fromkeys(("hermes_batch", "cli"), 6),
}
PACKAGES = {name: ROOT / name for name in ("hermes_exec", "hermes_agent")}
PACKAGES["hermes_batch"] = ROOT / "integrations" / "batch" / "hermes_batch"
FILES = {
    ".".join((name, *p.relative_to(d).with_suffix("").parts)): p
    for name, d in PACKAGES.items()
    for p in d.rglob("*.py")
}
READS_ENVIRONMENT = (
    "hermes_exec.testing",
    "hermes_exec.cli",
    "hermes_exec.from_env",
    "hermes_exec.pool",  # SandboxPool.from_env
    "hermes_agent.command",
    "hermes_batch.command",
    "hermes_batch.demo",
)


def layer(module: str) -> int:
    """The layer of a module; a part of hermes_exec that LAYERS does not name is of the slot and the pool."""
    if module.startswith("hermes_agent.command"):
        return LAYERS["cli"]
    package, _, rest = module.partition(".")
    return LAYERS[package] if package in LAYERS else LAYERS.get(rest.partition(".")[0], 3)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_type_checking(tree: ast.Module) -> ast.Module:
    body = [n for n in tree.body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))]
    return ast.Module(body=body, type_ignores=[])


@pytest.mark.parametrize("module", sorted(FILES))
def test_imports_point_downward(module: str) -> None:
    tree = without_type_checking(ast.parse(FILES[module].read_text()))
    upward = [
        name
        for name in imports(tree)
        if name.partition(".")[0] in PACKAGES and not module.endswith("__init__") and layer(name) > layer(module)
    ]
    assert upward == []


@pytest.mark.parametrize("module", sorted(m for m in FILES if not m.startswith(READS_ENVIRONMENT)))
def test_environment_is_read_by_the_command_line_only(module: str) -> None:
    names = {ast.unparse(n) for n in ast.walk(ast.parse(FILES[module].read_text())) if isinstance(n, ast.Attribute)}
    assert not names & {"os.environ", "os.getenv", "os.environb"}


def test_importing_the_package_loads_no_vendor_sdk() -> None:
    vendors = {"docker", "paramiko", "asyncssh", "modal", "openai", "requests", "xllamacpp", "trio", "typer"}
    code = f"import sys, hermes_exec; print(sorted({vendors!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
