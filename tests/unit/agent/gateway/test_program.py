"""What a rollout of a program refuses, and the task that it passes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hermes_agent import Rollout
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.program import ProgramResult, task_text
from hermes_agent.messages import Message
from hermes_exec.errors import ConfigError

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    "options",
    [{"toolsets": ["terminal"]}, {"tools": ["terminal"]}, {"tool_options": object()}, {"loop": {"max_turns": 3}}],
)
def test_program_excludes_options_of_the_loop(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} are options of the AgentLoop"):
        Rollout(messages="go", program=["mini"], **options)


@pytest.mark.parametrize("options", [{"gateway": Gateway()}, {"env": {"A": "b"}}, {"deadline_s": 3.0}])
def test_options_of_a_program_need_one(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} need program"):
        Rollout(messages="go", **options)


@pytest.mark.parametrize("program", ["", " ", []])
def test_empty_program_is_refused(program: str | Sequence[str]) -> None:
    with pytest.raises(ConfigError, match="empty"):
        Rollout(messages="go", program=program)


@pytest.mark.parametrize("deadline_s", [0, -1.0])
def test_deadline_of_a_program_is_above_zero(deadline_s: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Rollout(messages="go", program=["mini"], deadline_s=deadline_s)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "be kind"}],
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "go"}],
        [{"role": "user", "content": [{"type": "text", "text": "go"}, IMAGE]}],
    ],
)
def test_program_takes_one_user_message_of_text(messages: list[Message]) -> None:
    with pytest.raises(ConfigError, match="one user message"):
        Rollout(messages=messages, program=["mini"])


@pytest.mark.parametrize(
    "messages",
    ["go", [{"role": "user", "content": "go"}], [{"role": "user", "content": [{"type": "text", "text": "go"}]}]],
)
def test_task_is_the_text_of_the_message(messages: list[Message] | str) -> None:
    assert task_text(messages) == "go"


def test_end_of_a_program_is_explained() -> None:
    assert ProgramResult(3).explain() == "the program ended with exit code 3 and printed nothing"
    assert ProgramResult(1, output="\nno key\n").explain() == "the program ended with exit code 1; it printed: no key"
    missing = ProgramResult(127, reason="mini: not found")
    assert missing.explain() == "the program could not be started: mini: not found"
