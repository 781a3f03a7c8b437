"""The prompt of the embedded model: ChatML, with the most similar worked examples before the conversation."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from hermes_agent.messages import Message, message_text
from hermes_agent.trajectories.sharegpt import gpt_value

END = "<|im_end|>"
_START = "<|im_start|>"
_SYSTEM = (
    "You solve tasks with shell commands. Call the function terminal:\n"
    '<tool_call>\n{"name": "terminal", "arguments": {"command": "COMMAND"}}\n</tool_call>'
)
_DONE = "Done."
_RESULT_CHARACTERS = 600
_NAME = re.compile(r"\S*[./_]\S*")


class Example(NamedTuple):
    """A task, and the shell command that solves it."""

    task: str
    command: str


class Examples:
    """The bank of worked examples. A prompt contains `count` of them."""

    def __init__(self, bank: Sequence[Example], count: int) -> None:
        self._bank = list(bank)
        self._count = count
        self._frequency = Counter(word for example in bank for word in set(_words(example.task)))

    @classmethod
    def load(cls, count: int) -> Examples:
        """Return the bank of the package."""
        text = resources.files("hermes_agent.models.embedded").joinpath("shell_examples.jsonl").read_text("utf-8")
        return cls([Example(**json.loads(line)) for line in text.splitlines()], count)

    def near(self, task: str) -> list[Example]:
        """Return the most similar examples by the words that they share with the task; the best one last.

        Rare words count more, names of files do not count.
        """
        return (
            sorted(self._bank, key=lambda example: self._similarity(task, example.task))[-self._count :]
            if self._count
            else []
        )

    def _similarity(self, task: str, example: str) -> float:
        words, others = set(_words(task)), set(_words(example))
        size = sum(self._weight(word) for word in others)
        return sum(self._weight(word) for word in words & others) / math.sqrt(size) if size else 0.0

    def _weight(self, word: str) -> float:
        return math.log(1 + len(self._bank) / self._frequency.get(word, 1))


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], examples: Examples) -> str:
    """Return the text that the model continues with its answer.

    A longer history starts with the text of the shorter one, so that its computation is reused. The tools' schemas are
    left out, because they are longer than the context of a model this small. Without a tool named `terminal` there are
    no examples of it either.
    """
    task = next((message_text(message) for message in messages if message.get("role") == "user"), "")
    has_terminal = any(tool.get("function", tool).get("name") == "terminal" for tool in tools)
    parts = [_message("system", _SYSTEM)] if has_terminal else []
    for index, example in enumerate(examples.near(task) if has_terminal else []):
        parts += [_message("user", example.task), _message("assistant", _call(example.command))]
        if index == 0:
            parts += [
                _message("user", _result('{"output": "", "exit_code": 0, "error": null}')),
                _message("assistant", _DONE),
            ]
    for message in messages:
        parts += _render_message(message)
    return "".join([*parts, f"{_START}assistant\n"])


def _render_message(message: Mapping[str, Any]) -> list[str]:
    role, content = message.get("role"), message_text(message)
    if role == "assistant":
        text = gpt_value({**message, "reasoning_content": None}).removeprefix("<think>\n</think>").strip()
        return [_message("assistant", text)]
    if role == "tool":
        return [_message("user", _result(_shorten(content)))]
    return [_message("user" if role == "user" else "system", content)]


def _message(role: str, text: str) -> str:
    plain = text.replace(_START, "< |im_start|>").replace(END, "< |im_end|>")
    return f"{_START}{role}\n{plain}{END}\n"


def _call(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'terminal', 'arguments': {'command': command}})}\n</tool_call>"


def _result(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def _shorten(text: str) -> str:
    if len(text) <= _RESULT_CHARACTERS:
        return text
    head = _RESULT_CHARACTERS * 2 // 5
    return f"{text[:head]} … {text[head - _RESULT_CHARACTERS :]}"


def _words(task: str) -> list[str]:
    return re.findall(r"[a-z]+", _NAME.sub(" ", task.lower()))
