"""A scripted agent for the browser tasks. It follows given solutions and looks up references in the results of the
tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_agent.messages import Completion, Message, message_text
from hermes_agent.models.scripted import call

_FROM_RESULTS = re.compile(r"\{(.+)\}", re.DOTALL)


class SolutionsModel:
    """A model that makes the n-th call of a prompt's solution in the n-th turn.

    `solutions` are the calls by prompt: the tool's name and its arguments. A `ref` is a text in an element's line; its
    reference is looked up in the last snapshot that has it. `{pattern}` in a `content` is replaced by the first group
    of that regular expression in the newest result that matches. The episode ends if the lookup fails.
    """

    model = "scripted"

    def __init__(self, solutions: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]) -> None:
        self._solutions = solutions

    @classmethod
    def of(cls, tasks: Path, solutions: Path) -> SolutionsModel:
        """Create a model from a file of prompts and a file of solutions by their ids."""
        calls = json.loads(solutions.read_text("utf-8"))
        lines = map(json.loads, tasks.read_text("utf-8").splitlines())
        return cls({task["prompt"]: calls[task["id"]] for task in lines})

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        **sampling: object,
    ) -> Completion:
        """Return the next call; see `Model.complete`."""
        prompt = next(message_text(message) for message in messages if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages)
        steps = self._solutions[prompt]
        if turn == len(steps):
            return Completion("Done.")
        name, arguments = steps[turn]
        results = [message_text(message) for message in reversed(messages) if message["role"] == "tool"]
        try:
            return Completion("", (call(name, _fill_arguments(arguments, results), call_id=f"call_{turn}"),))
        except LookupError as error:
            return Completion(f"I cannot find {error.args[0]!r}.")


def _fill_arguments(arguments: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    result = dict(arguments)
    if "ref" in arguments:
        result["ref"] = _find_ref(arguments["ref"], results)
    if match := _FROM_RESULTS.search(arguments.get("content", "")):
        result["content"] = arguments["content"].replace(match[0], _find_first(match[1], results))
    return result


def _find_ref(text: str, results: Sequence[str]) -> str:
    for result in results:
        try:
            snapshot = str(json.loads(result).get("snapshot", ""))
        except (ValueError, AttributeError):
            continue
        for line in snapshot.splitlines():
            if text in line and (match := re.search(r"\[ref=(\w+)\]", line)):
                return f"@{match[1]}"
    raise LookupError(text)


def _find_first(pattern: str, results: Sequence[str]) -> str:
    for result in results:
        if match := re.search(pattern, result.replace('\\"', '"').replace("\\n", "\n")):
            return match[1]
    raise LookupError(pattern)
