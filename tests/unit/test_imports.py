"""Imports run one way: errors, config ← backends ← channel ← slot, pool ← tools ← hermes_agent ← hermes_batch, cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hermes_exec.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {
    **dict.fromkeys(("errors", "encoding", "results", "config", "runner_binary", "event_loop", "streams"), 0),
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


def loaded(code: str, *among: str) -> str:
    """Which of these modules are loaded after some code ran in a new interpreter."""
    code = f"{code}; import sys; print(*sorted({set(among)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_using_the_package_loads_no_vendor_sdk() -> None:
    vendors = ("docker", "paramiko", "asyncssh", "modal", "openai", "requests", "xllamacpp", "trio", "typer", "yaml")
    assert loaded("from hermes_exec import SandboxPool; SandboxPool()", *vendors) == ""


def test_importing_the_pool_loads_nothing_that_it_is_run_with() -> None:
    heavy = ("pydantic", "asyncio", "importlib.metadata", "tarfile", "rich", "typer", "yaml", "docker", "openai")
    assert loaded("from hermes_exec import SandboxPool", *heavy, "hermes_exec.config", "hermes_exec.channel") == ""


def test_entry_points_are_looked_up_for_other_names_than_our_own_only() -> None:
    build = "from hermes_exec.cli.app import build_app; build_app"
    assert loaded(f"{build}('run'); import hermes_exec.backends.registry", "importlib.metadata") == ""
    assert loaded(f"{build}('no such command')", "importlib.metadata") == "importlib.metadata"


@pytest.mark.parametrize("package", ["hermes_exec", "hermes_agent", "hermes_batch"])
def test_importing_a_package_loads_nothing(package: str) -> None:
    heavy = ("anyio", "asyncio", "pydantic", "rich", "typer", "yaml", "hermes_exec.pool", "hermes_exec.config")
    assert loaded(f"import {package}", *heavy) == ""


@pytest.mark.parametrize("package", ["hermes_exec", "hermes_agent", "hermes_batch"])
def test_public_names_are_there(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize("module", [*COMMANDS, "hermes_agent.command", "hermes_batch.command"])
def test_help_of_the_command_line_needs_no_pool(module: str) -> None:
    module = f"hermes_exec.cli.{module}" if module in COMMANDS else module
    assert loaded(f"import {module}", "pydantic", "rich", "yaml", "hermes_exec.pool", "hermes_exec.tools") == ""


CORE = {"anyio", "pydantic", "pydantic_core", "rich", "typer", "yaml"}
"""What `dependencies` of pyproject.toml brings, by the names that are imported."""
EXTRAS = {"hermes_exec/testing/": {"pytest"}, "hermes_exec/backends/docker_client.py": {"docker"}}


def test_only_declared_packages_are_imported_without_being_asked_for() -> None:
    """What a module imports at its top is there in every installation; extras are imported where they are used."""
    wrong = set()
    for path in sorted((ROOT / "hermes_exec").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        allowed = CORE.union(*(extra for place, extra in EXTRAS.items() if name.startswith(place)))
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [node.module]
            roots = {imported.partition(".")[0] for imported in names}
            wrong |= {(name, root) for root in roots - allowed - sys.stdlib_module_names - {"hermes_exec"}}
    assert not wrong
