"""Imports run one way: a layer imports from the layers below its own, and from no other."""

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
LAYERS = (
    ("hermes_exec.errors",),
    ("hermes_exec.requirements",),
    ("hermes_exec._lazy",),
    ("hermes_exec.checks", "hermes_exec.results", "hermes_exec.private_files", "hermes_exec.file_lock"),
    ("hermes_exec.aio", "hermes_exec.config"),
    ("hermes_exec.redact", "hermes_exec.backends", "hermes_exec.channel", "hermes_exec.archives"),
    ("hermes_exec.tracing",),
    ("hermes_exec.slot",),
    ("hermes_exec.blocking", "hermes_exec.pool"),
    ("hermes_exec",),  # the public names
    ("hermes_exec.tools",),
    ("hermes_exec.testing",),
    ("hermes_agent",),
    (
        "hermes_batch",
        "hermes_atropos",
        "hermes_langchain",
        "hermes_mcp",
        "hermes_mini",
        "hermes_harbor",
        "hermes_nemo_gym",
        "hermes_inspect",
        "hermes_plugin",
    ),
    ("hermes_exec.cli.kit",),
    ("hermes_agent.cli",),
    ("hermes_exec.cli", "hermes_batch.cli", "hermes_atropos.cli", "hermes_mcp.cli"),
)
"""Rooms, the lowest first. Those of one layer do not import each other."""
FLOOR = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
BESIDE = {
    ("hermes_exec.pool", "hermes_exec.blocking"),  # inside of `__enter__`: one class serves `with` and `async with`
    ("hermes_exec.blocking", "hermes_exec.pool"),
    ("hermes_atropos", "hermes_atropos.cli"),  # inside of `SandboxAgentEnv.cli`, as atroposlib has it
}
NEVER = {("hermes_exec.tools", "hermes_exec.pool")}
"""What the layers allow and the design does not."""
PACKAGES = {name: ROOT / name for name in ("hermes_exec", "hermes_agent")}
PACKAGES |= {path.name: path for path in sorted(ROOT.glob("integrations/*/hermes_*"))}
FILES = {
    ".".join((name, *p.relative_to(d).with_suffix("").parts)).removesuffix(".__init__"): p
    for name, d in PACKAGES.items()
    for p in d.rglob("*.py")
    if "data" not in p.relative_to(d).parts
}
READS_ENVIRONMENT = (
    "hermes_exec.testing",
    "hermes_exec.cli",
    "hermes_exec.pool.pool",  # SandboxPool.from_env
    "hermes_exec.backends.helpers",  # what helper programs get of it
    "hermes_exec.tools.code.programs",  # they run in slots
    "hermes_agent.gateway.script",  # it runs in slots
    "hermes_agent.cli.agent",
    "hermes_agent.models.http.environment",  # proxies and headers, as the official client of OpenAI
    "hermes_batch.cli",
    "hermes_mini.environment",  # `forward_env`
    "hermes_atropos.cli",
)


def room(module: str) -> str:
    """The room that a module is in: of the rooms that hold it, the smallest. KeyError for a module of no room."""
    parts = module.split(".")
    if parts[0] == "hermes_exec" and len(parts) > 1 and ".".join(parts[:2]) not in FLOOR and is_module(parts[1]):
        raise KeyError(f"{module} is in no room that LAYERS names")
    holding = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(name for name in holding if name in FLOOR)


def is_module(name: str) -> bool:
    """Whether hermes_exec has a module or a directory of this name; else it is one of its public names."""
    return any((PACKAGES["hermes_exec"] / found).exists() for found in (name, f"{name}.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_type_checking(tree: ast.Module) -> ast.Module:
    body = [n for n in tree.body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))]
    return ast.Module(body=body, type_ignores=[])


@pytest.mark.parametrize("module", sorted(FILES.keys() - {"hermes_exec"}))
def test_imports_point_downward(module: str) -> None:
    here = room(module)
    tree = without_type_checking(ast.parse(FILES[module].read_text()))
    wrong = []
    for name in imports(tree):
        if name.partition(".")[0] not in PACKAGES:
            continue
        there = room(name)
        allowed = there == here or FLOOR[there] < FLOOR[here] or (here, there) in BESIDE
        if not allowed or (here, there) in NEVER:
            wrong.append(name)
    assert wrong == []


def module_of(name: str) -> str:
    """The module that an imported name is, or is in; "" for one of another package."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name


def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports: at its top, inside of functions and for the type checker. What a package
    names for the type checker in its `__init__.py` are its public names, which it loads when they are used.
    """
    graph = {}
    for module, path in FILES.items():
        tree = ast.parse(path.read_text())
        names = imports(without_type_checking(tree) if path.name == "__init__.py" else tree)
        graph[module] = {module_of(name) for name in names} - {"", module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or by others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            found = graph[ahead.pop()] - seen
            seen |= found
            ahead += found
        return seen

    behind = {module: reached(module) for module in graph}
    sets = {frozenset(other for other in behind[module] if module in behind[other]) for module in graph}
    return [set(members) for members in sets if members]


def test_modules_import_each_other_in_one_place_only() -> None:
    assert circles(import_graph()) == [{"hermes_exec.pool.pool", "hermes_exec.blocking"}]


def test_a_circle_of_imports_is_found() -> None:
    graph: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert sorted(map(sorted, circles(graph))) == [["b", "c"], ["e"]]


def test_a_module_of_no_room_is_refused() -> None:
    (first, *_) = (name for name in ("slot", "pool") if is_module(name))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyError, match="no room"):
        patch.delitem(FLOOR, f"hermes_exec.{first}")
        room(f"hermes_exec.{first}.process")


PUBLIC = ("blocking", "config", "errors", "results", "testing", "tools", "tracing")
"""The public modules of hermes_exec, beside its own names."""
SHARED = (
    "hermes_exec._lazy",
    "hermes_exec.requirements",
    "hermes_exec.aio.loop",
    "hermes_exec.aio.tasks",
    "hermes_exec.aio.threads",
    "hermes_exec.cli.kit",
    "hermes_exec.config.older_names",
    "hermes_exec.file_lock",
    "hermes_exec.private_files",
    "hermes_exec.redact",
)
"""What the commands and the packages of this project have in common."""


@pytest.mark.parametrize("module", sorted(m for m in FILES if not m.startswith("hermes_exec")))
def test_what_stands_on_hermes_exec_uses_its_public_names(module: str) -> None:
    public = {f"hermes_exec.{name}" for name in import_module("hermes_exec").__all__}
    public |= {f"hermes_exec.{name}" for name in PUBLIC}
    public |= {f"hermes_exec.tools.{name}" for name in import_module("hermes_exec.tools").__all__}
    modules = tuple(f"hermes_exec.{name}." for name in PUBLIC if name != "tools")
    wrong = [
        name
        for name in imports(ast.parse(FILES[module].read_text()))
        if name.startswith("hermes_exec.")
        and name not in public
        and not name.startswith(SHARED)
        and not (name.startswith(modules) and name.count(".") == 2)
    ]
    assert wrong == []


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
    vendors = ("docker", "paramiko", "asyncssh", "modal", "httpcore2", "requests", "xllamacpp", "trio", "typer", "yaml")
    assert loaded("from hermes_exec import SandboxPool; SandboxPool()", *vendors) == ""


def test_importing_the_pool_loads_nothing_that_it_is_run_with() -> None:
    heavy = ("pydantic", "asyncio", "importlib.metadata", "tarfile", "rich", "typer", "yaml", "docker", "httpcore2")
    assert loaded("from hermes_exec import SandboxPool", *heavy, "hermes_exec.config", "hermes_exec.channel") == ""


def test_entry_points_are_looked_up_for_other_names_than_our_own_only() -> None:
    build = "from hermes_exec.cli.app import build_app; build_app"
    assert loaded(f"{build}('run'); import hermes_exec.backends.registry", "importlib.metadata") == ""
    assert loaded(f"{build}('no such command')", "importlib.metadata") == "importlib.metadata"


@pytest.mark.parametrize("package", ["hermes_exec", "hermes_agent", "hermes_batch", "hermes_atropos", "hermes_mcp"])
def test_importing_a_package_loads_nothing(package: str) -> None:
    heavy = ("anyio", "asyncio", "pydantic", "rich", "typer", "yaml", "hermes_exec.pool", "hermes_exec.config")
    assert loaded(f"import {package}", *heavy) == ""


@pytest.mark.parametrize("package", ["hermes_exec", "hermes_agent", "hermes_batch", "hermes_atropos"])
def test_public_names_are_there(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_public_modules_are_attributes() -> None:
    code = (
        "import hermes_exec as h; h.tools.Toolbox, h.blocking.Slot, h.errors.ExecError, h.tracing.Tracer,"
        "h.testing.conformance.run_conformance, h.testing.faults.faulty"
    )
    assert loaded(code, "hermes_exec.tools") == "hermes_exec.tools"


@pytest.mark.parametrize(
    "module",
    [
        *COMMANDS,
        "hermes_agent.cli.agent",
        "hermes_batch.cli.commands",
        "hermes_atropos.cli.commands",
        "hermes_mcp.cli",
    ],
)
def test_help_of_the_command_line_needs_no_pool(module: str) -> None:
    module = f"hermes_exec.cli.commands.{module}" if module in COMMANDS else module
    assert loaded(f"import {module}", "pydantic", "rich", "yaml", "hermes_exec.pool", "hermes_exec.tools") == ""


CORE = {"anyio", "pydantic", "pydantic_core", "rich", "typer", "yaml"}
"""What `dependencies` of pyproject.toml brings, by the names that are imported."""
EXTRAS = {
    "hermes_exec/testing/": {"pytest"},
    "hermes_exec/aio/websocket.py": {"wsproto"},
    "hermes_exec/backends/docker/client.py": {"docker", "requests"},
    "hermes_exec/backends/docker/context.py": {"docker"},
    "hermes_exec/backends/docker/errors.py": {"docker", "requests", "urllib3"},
    "hermes_exec/backends/modal/errors.py": {"grpclib", "modal"},
    "hermes_exec/backends/ssh/paramiko_transport.py": {"paramiko"},
}


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
