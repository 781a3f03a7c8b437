"""Recipes of known harnesses: their arguments and variables for a run in a slot that reaches the gateway."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError


@dataclass(frozen=True)
class Harness:
    """A harness as `Rollout(program=…)` takes it.

    Attributes:
        name: The name of its recipe with its further arguments, or any other.
        argv: The program and its arguments, with the task in place of `{task}`.
        env: Its variables. Those of the rollout win.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def harness(name: str, *arguments: str) -> Harness:
    """Return the recipe of a harness, with further arguments before its task.

    The program itself must be in the slot and on its `PATH`: `mini`, `hermes`, `claude` or `codex`. `script` needs
    `python3` (3.8 or newer) and `sh`.

    Args:
        name: `mini-swe-agent`, `hermes-agent`, `claude-code`, `codex`, or `script`: a short harness of hermes-exec with
            the one tool `bash`.
        arguments: Further arguments of the program, such as `"-t", "terminal,file"` for hermes-agent.

    Raises:
        ConfigError: If there is no such recipe.
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe of a harness {name!r}; {nearest(name, RECIPES)}")
    recipe = RECIPES[name]
    return Harness(shlex.join((name, *arguments)), (*recipe.command, *arguments, *recipe.task), recipe.env)


class Recipe(NamedTuple):
    """The parts of a harness's command, and its variables. A task may begin with a hyphen."""

    command: tuple[str, ...]
    task: tuple[str, ...]
    env: Mapping[str, str] = {}


# It ignores OPENAI_BASE_URL, and opens WebSockets to its own host unless it has another provider.
_CODEX = """\
exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m policy -c model_provider=gateway \
-c "model_providers.gateway={name=\\"gateway\\", base_url=\\"$OPENAI_BASE_URL\\", env_key=\\"OPENAI_API_KEY\\", \
wire_api=\\"responses\\"}" "$@" < /dev/null"""
RECIPES: Mapping[str, Recipe] = {
    "mini-swe-agent": Recipe(
        ("mini", "-y", "--exit-immediately", "-m", "openai/policy", "-c", "mini.yaml"),
        ("-t", "{task}"),
        # Without these it begins a dialogue, and fails because it knows no price of the model.
        {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"},
    ),
    "hermes-agent": Recipe(
        # Only this provider reads OPENAI_BASE_URL and OPENAI_API_KEY.
        ("hermes", "chat", "-Q", "--yolo", "-m", "policy", "--provider", "openai-api"),
        ("--query={task}",),
    ),
    "claude-code": Recipe(
        ("claude", "-p", "--model", "policy", "--dangerously-skip-permissions"),
        ("--", "{task}"),
        # As root it refuses to skip permissions outside of a sandbox.
        {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Recipe(("sh", "-c", _CODEX, "codex"), ("--", "{task}")),
    "script": Recipe(("python3", "-c", Path(__file__).with_name("script.py").read_text("utf-8")), ("{task}",)),
}
"""The recipes by the names of their harnesses."""
