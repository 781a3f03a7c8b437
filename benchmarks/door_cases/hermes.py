"""hermes-agent: a command, a file and a script with seven inner calls, in slots in both ways, beside its docker."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from benchmarks.door_cases.turns import measure

IMAGE = sys.argv[1]
HOME = Path(tempfile.mkdtemp(prefix="hermes-home-"))
TOOLS = ("terminal", "process", "read_file", "write_file", "patch", "search_files", "execute_code")
CODE = """
from hermes_tools import read_file, terminal
for number in range(6):
    terminal(f"echo {number}")
print(read_file("/tmp/data.txt")["content"])
"""
LINES = "".join(f"line {number}\n" for number in range(300))
ENV = {
    "HERMES_HOME": str(HOME),
    "TERMINAL_DOCKER_IMAGE": IMAGE,
    "TERMINAL_CONTAINER_PERSISTENT": "false",
    "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES": "false",
    **{f"TERMINAL_CONTAINER_{name}": "0" for name in ("CPU", "MEMORY", "DISK")},
}


def load_tools(*, tools: bool) -> dict[str, Any]:
    """Load the plugin with the option `tools`, and return the registered tools."""
    options = {"backend": "docker", "image": IMAGE, "slots_per_sandbox": 8, "tools": tools}
    plugins = {"enabled": ["hermes-exec"], "entries": {"hermes-exec": {"allow_tool_override": True}}}
    config = {"plugins": plugins, "terminal": {"backends": {"hermes_exec": options}}}
    (HOME / "config.yaml").write_text(yaml.safe_dump(config))
    import model_tools  # noqa: F401 - registers the tools
    from hermes_cli.plugins import discover_plugins
    from tools.registry import registry

    discover_plugins(force=True)
    return {name: registry.get_entry(name) for name in TOOLS}


def call(backend: str, entries: dict[str, Any], name: str, **arguments: object) -> dict[str, Any]:
    """Call one of the tools in the environment of a backend."""
    from model_tools import handle_function_call
    from tools.registry import registry

    os.environ["TERMINAL_ENV"] = backend
    registry._tools.update(entries)
    result: dict[str, Any] = json.loads(handle_function_call(name, arguments, task_id=backend))
    assert not result.get("error"), result
    return result


def run(way: str, ours: Callable[..., object], theirs: Callable[..., object]) -> None:
    """Measure the three calls in a slot and in its docker."""
    starts = count(1)

    def read(sandbox: Callable[..., object]) -> None:
        sandbox("read_file", path="/tmp/data.txt", offset=next(starts), limit=200)

    for sandbox in (ours, theirs):
        sandbox("write_file", path="/tmp/data.txt", content=LINES)
    for what, repetitions, work in (
        ("terminal", 20, lambda sandbox: sandbox("terminal", command="echo hi")),
        ("read_file", 10, read),
        ("execute_code, 7 calls", 5, lambda sandbox: sandbox("execute_code", code=CODE)),
    ):
        measure(f"{what} ({way})", partial(work, ours), partial(work, theirs), repetitions)


def main() -> None:
    """Measure both ways. hermes-agent removes its container when the process ends."""
    os.environ |= {**ENV, "TERMINAL_ENV": "hermes_exec"}
    warnings.simplefilter("ignore")
    own = load_tools(tools=False)
    from tools.terminal_tool import register_task_env_overrides

    for backend in ("hermes_exec", "docker"):
        register_task_env_overrides(backend, {"env_type": backend})
    theirs = partial(call, "docker", own)
    run("environment", partial(call, "hermes_exec", own), theirs)
    os.environ["TERMINAL_ENV"] = "hermes_exec"
    run("tools", partial(call, "hermes_exec", load_tools(tools=True)), theirs)


if __name__ == "__main__":
    main()
