"""The wall clock decides nothing: it may jump. What reads it only tells the time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TELLS = {
    "hermes_exec/cli/observe/look.py": "how long processes have run, in a table",
    "hermes_exec/cli/commands/ps.py": "how long sandboxes have existed, in a table",
    "hermes_exec/tracing/otel.py": "where spans lie in time",
    "hermes_exec/tracing/writer.py": "when a trace began",
    "hermes_exec/slot/process.py": "when a process started, where the sandbox did not say it",
    "hermes_exec/testing": "checks of what sandboxes tell, and the clock that jumps",
}
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime"}


def readings(source: str) -> list[ast.Call]:
    """Calls that read the wall clock and are not the time of an event of the pool."""
    tree = ast.parse(source)
    events = {
        id(word.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "time"
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WALL
        and not node.args
        and id(node) not in events
    ]


@pytest.mark.parametrize("package", ["hermes_exec"])
def test_the_driver_only_tells_the_time(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py") if readings(path.read_text("utf-8"))
    }
    assert {name for name in found if not any(name.startswith(known) for known in TELLS)} == set()
    assert readings("import time; time.time()")
    assert not readings("import time; Event(time=time.time())")


READS_WALL = re.compile(
    r"\.Unix(?:Nano|Micro|Milli)?\(\)|\.Round\(|time\.(?:Date|Parse|Unix\w*)\(|Gettimeofday|CLOCK_REALTIME"
)
"""A time of Go keeps the monotonic clock with it, and differences are taken by that, until one of these is done."""
GO_TELLS = {
    "tenants/processes_linux.go": "when processes started",
    "detached/detached.go": "when a sandbox was made, in a table",
    "process/process.go": "when processes started",
    "search/list.go": "the time of a file",
    "files/stat.go": "the time of a file",
    "layers/pack_linux.go": "the times of files, in an archive",
    "layers/unpack_linux.go": "the times of files, in an archive",
    "diskspace/space.go": "which files changed since a slot was acquired, to count them if the disk is nearly full",
    "leftover/flatten_linux.go": "which directories were changed since the runner began, to be made flat at its end",
    "cgroup/cgroup_linux.go": "a name that nobody else has",
    "command/pump.go": "a deadline that has passed long ago",
    "process/methods.go": "a deadline that has passed long ago",
}


def test_the_runner_only_tells_the_time() -> None:
    internal = ROOT / "runner" / "internal"
    sources = [path for path in internal.rglob("*.go") if not path.name.endswith("_test.go")]
    found = {str(path.relative_to(internal)) for path in sources if READS_WALL.search(path.read_text("utf-8"))}
    assert found == set(GO_TELLS)
