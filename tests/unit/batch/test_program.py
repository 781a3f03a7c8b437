"""The program of a batch run: recipes with further arguments, and commands."""

from __future__ import annotations

import pytest

from hermes_agent.gateway import Harness
from hermes_batch.program import parse_program


@pytest.mark.parametrize(
    ("program", "name", "argv"),
    [
        (
            "hermes-agent -t 'terminal, file'",
            "hermes-agent -t 'terminal, file'",
            ("-t", "terminal, file", "--query={task}"),
        ),
        ("claude-code", "claude-code", ("--", "{task}")),
        ("codex exec {task}", None, ("codex", "exec", "{task}")),
        ("python3 agent.py", None, ("python3", "agent.py")),
    ],
)
def test_recipe_takes_further_arguments(program: str, name: str | None, argv: tuple[str, ...]) -> None:
    parsed = parse_program(program)
    if name is None:
        assert parsed == argv
    else:
        assert isinstance(parsed, Harness)
        assert (parsed.name, parsed.argv[-len(argv) :]) == (name, argv)
