"""A task for harnesses, and a scripted model that solves it by one call of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from hermes_agent import CommandCheck, Completion, Message, Rollout, RolloutResult, Scoring, ScriptedModel
from hermes_agent.gateway import Gateway, Harness
from hermes_agent.models.scripted import call

COMMAND = "sort -o names.txt names.txt"
TASK = '- Sort names.txt, {task}: "in place" $HOME'
"""A text that a wrong quoting would change."""


def sorting_model(tool: str, argument: str = "command") -> ScriptedModel:
    """Return a model that sorts by a call of this tool, and then answers."""

    def answer(messages: Sequence[Message]) -> Completion:
        if any(message["role"] == "tool" for message in messages):  # a harness may add messages after the result
            return Completion("Sorted.")
        return Completion("I sort.", (call(tool, {argument: COMMAND}),))

    return ScriptedModel(repeat(answer))


def sorting_rollout(program: Harness, path: str = "") -> Rollout:
    """Return the rollout of a harness, with the directory of its program on the `PATH`."""
    return Rollout(
        messages=TASK,
        program=program,
        env={"PATH": f"{path}:/usr/bin:/bin"} if path else None,
        deadline_s=300,
        gateway=Gateway(max_requests=10),
        files={"names.txt": "b\na\n"},
        scoring=Scoring(check=CommandCheck("cmp names.txt expected"), files={"expected": "a\nb\n"}, keep=["names.txt"]),
    )


def check_sorted(result: RolloutResult) -> None:
    """Check that the harness read the whole task, called the tool, and got the last answer."""
    episode = result.episode
    assert episode is not None, result.error
    assert episode.captured is not None
    assert (result.reward, result.finish) == (1.0, "answered"), (episode.program, result.failure)
    roles = [message["role"] for message in episode.messages]
    assert (roles[:4], roles[-1], len(episode.captured.nodes)) == (
        ["system", "user", "assistant", "tool"],
        "assistant",
        2,
    )
    assert TASK in str(episode.messages[1]["content"])
    assert episode.program is not None
    assert (episode.program.exit_code, "Sorted." in episode.program.output) == (0, True)
    assert len(episode.captured.roots) == 1
