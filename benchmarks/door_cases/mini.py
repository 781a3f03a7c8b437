"""mini-swe-agent: an agent's environment with ten commands, and a command alone, beside its Docker environment."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ |= {"MSWEA_GLOBAL_CONFIG_DIR": tempfile.mkdtemp(prefix="mini-swe-agent-"), "MSWEA_SILENT_STARTUP": "1"}

from minisweagent.environments import get_environment

from benchmarks.door_cases.turns import measure

IMAGE = sys.argv[1]
OURS: dict[str, Any] = {
    "environment_class": "hermes_mini.Environment",
    "backend": "docker",
    "image": IMAGE,
    "slots_per_sandbox": 8,
}
THEIRS: dict[str, Any] = {"environment_class": "docker", "image": IMAGE, "cwd": "/"}


def use(options: dict[str, Any]) -> None:
    """Run ten commands in an environment of its own."""
    environment: Any = get_environment(dict(options))
    for number in range(10):
        assert environment.execute({"command": f"echo {number}"})["output"] == f"{number}\n"
    environment.cleanup()


ours, theirs = get_environment(dict(OURS)), get_environment(dict(THEIRS))
measure("a command", lambda: ours.execute({"command": "echo hi"}), lambda: theirs.execute({"command": "echo hi"}), 20)
measure("an environment with ten commands", lambda: use(OURS), lambda: use(THEIRS), 5)
