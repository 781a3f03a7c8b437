"""hermes-agent with a home directory of its own, and its four ways to run tools."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

HOME = Path(tempfile.mkdtemp(prefix="hermes-home-"))
os.environ["HERMES_HOME"] = str(HOME)


@dataclass(frozen=True)
class Way:
    """A way in which hermes-agent runs its tools."""

    name: str
    terminal: str
    """The value of `terminal.backend`."""
    options: dict[str, Any]
    """The options of the backend `hermes_exec`, without its image."""

    @property
    def is_ours(self) -> bool:
        """Whether tools run in slots."""
        return self.terminal == "hermes_exec"


SHARED = {"slots_per_sandbox": 4, "max_sandboxes": 1}
WAYS = {
    "local": Way("local", "hermes_exec", {"backend": "local", "min_isolation": "namespaces"}),
    "docker": Way("docker", "hermes_exec", {"backend": "docker", **SHARED}),
    "tools": Way("tools", "hermes_exec", {"backend": "docker", "tools": True, **SHARED}),
    "its-docker": Way("its-docker", "docker", {}),
}


def configure(home: Path, way: Way, image: str, **more: Any) -> dict[str, str]:
    """Write hermes-agent's config.yaml, and return the variables that its command line would set from it."""
    options = way.options if way.options.get("backend") != "docker" else {**way.options, "image": image}
    plugins = {"enabled": ["hermes-exec"], "entries": {"hermes-exec": {"allow_tool_override": True}}}
    terminal = {
        "backend": way.terminal,
        "docker_image": image,
        "container_persistent": False,
        "docker_persist_across_processes": False,
        "backends": {"hermes_exec": options},
    }
    (home / "config.yaml").write_text(yaml.safe_dump({"plugins": plugins, "terminal": terminal, **more}))
    return {
        "TERMINAL_ENV": way.terminal,
        "TERMINAL_DOCKER_IMAGE": image,
        "TERMINAL_CONTAINER_PERSISTENT": "false",
        "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES": "false",
        "TERMINAL_CONTAINER_CPU": "0",
        "TERMINAL_CONTAINER_MEMORY": "0",
        "TERMINAL_CONTAINER_DISK": "0",
    }


@pytest.fixture
def hermes(monkeypatch: pytest.MonkeyPatch, docker_image: Callable[[str], str]) -> Iterator[Callable[..., None]]:
    """A function that lets hermes-agent use a way, until the test ends."""

    def use(way: Way, image: str | None = None) -> None:
        for name, value in configure(HOME, way, image or docker_image("debian")).items():
            monkeypatch.setenv(name, value)
        load_plugins()

    yield use
    from tools.terminal_tool import cleanup_all_environments

    cleanup_all_environments()


def load_plugins() -> None:
    """Load the plugins anew, with the tools of hermes-agent in place of those of a plugin."""
    import model_tools  # noqa: F401 - registers the tools
    from hermes_cli.plugins import discover_plugins
    from tools.registry import registry

    for name in TOOLS:
        BUILT_IN.setdefault(name, registry.get_entry(name))
        registry._tools[name] = BUILT_IN[name]
    discover_plugins(force=True)


TOOLS = ("terminal", "process", "read_file", "write_file", "patch", "search_files", "execute_code")
BUILT_IN: dict[str, Any] = {}


def call(name: str, arguments: dict[str, Any], task_id: str = "default") -> dict[str, Any]:
    """Call a tool as an agent does, and return its result."""
    from model_tools import handle_function_call

    result: dict[str, Any] = json.loads(handle_function_call(name, arguments, task_id=task_id))
    return result
