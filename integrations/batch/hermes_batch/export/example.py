"""One record on its way into a data set: its place, its measures, and its messages as a format needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hermes_agent.messages import Message, message_text
from hermes_agent.parsers.json_text import JsonValue, decode_whole
from hermes_batch.columns import WITHOUT_MESSAGES, decode_list
from hermes_batch.index import Row
from hermes_batch.trajectories import read_record_at

_BYTES_PER_TOKEN = 3
"""Bytes of a conversation for each estimated token. Code and English have 3 to 4, so that estimates are rather high."""
_REASONING_FIELDS = frozenset({"reasoning_content", "reasoning_details"})
_PROVIDER_FIELDS = frozenset({"reasoning_details", "extra_content"})
"""Fields that only the provider that wrote them can read."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_THINKING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)


class FormatProblem(ValueError):
    """The reason why a record cannot be written in a format."""


class TurnFacts(NamedTuple):
    """The usage and the token ids of one turn, as in the record."""

    usage: dict[str, Any]
    tokens: dict[str, Any]


@dataclass(frozen=True)
class TrainingExample:
    """A record of a run.

    Attributes:
        run: The directory of the run.
        run_number: The position of the run among the exported ones, from 0.
        row: The record's row of the index, whose columns need no parsing of the record.
        lines: The open file of the run.
    """

    run: Path
    run_number: int
    row: Row
    lines: BinaryIO

    @cached_property
    def record(self) -> Row:
        """The record, which is read at its first use."""
        return read_record_at(self.lines, self.row["offset"])

    @property
    def place(self) -> tuple[int, int]:
        """The run's number and the line's offset, which identify the record."""
        return self.run_number, self.row["offset"]

    @property
    def id(self) -> str:
        """The id of the prompt."""
        return str(self.row.get("id", ""))

    @property
    def group(self) -> str:
        """The group of the prompt."""
        return str(self.row["group"])

    @property
    def number(self) -> int:
        """The number of the sample within its group, from 0."""
        return int(self.row.get("sample") or 0)

    @property
    def key(self) -> str:
        """The name of the record within its run."""
        return f"{self.group}/{self.number}"

    @property
    def name(self) -> str:
        """A file name that is unique in the export: the prompt's id and a digest."""
        place = _digest([self.key, *self.place]).hex()[:12]
        return f"{_UNSAFE.sub('-', self.id)[:60].lstrip('.-') or 'record'}-{place}"

    @property
    def outcome(self) -> str:
        """`solved`, `unsolved`, `unscored` or `unchecked`."""
        return str(self.row.get("solved", "unchecked"))

    @cached_property
    def reward(self) -> float | None:
        """The reward. None: nothing was scored."""
        reward = _decode(str(self.row.get("reward")))
        return float(reward) if isinstance(reward, int | float) else None

    @cached_property
    def usage(self) -> list[dict[str, Any]]:
        """The usage of each turn. Empty if the record has none."""
        return [each for each in decode_list(self.record, "usage") if isinstance(each, dict)]

    @cached_property
    def messages(self) -> list[Message]:
        """The messages of the record."""
        return [message for message in decode_list(self.record, "messages") if isinstance(message, dict)]

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The function schemas of the record."""
        return [tool for tool in decode_list(self.record, "tools") if isinstance(tool, dict)]

    @cached_property
    def calls(self) -> list[dict[str, Any]]:
        """The facts of each call."""
        return [call for call in decode_list(self.record, "calls") if isinstance(call, dict)]

    @cached_property
    def reported_tokens(self) -> int:
        """The tokens of the longest request with its answer. 0 if the endpoint reported none, or if the model did not
        see the whole conversation at once.
        """
        if self.record.get("compacted"):
            return 0
        counts = [_count(each, "prompt_tokens") + _count(each, "completion_tokens") for each in self.usage]
        return max(counts, default=0)

    @cached_property
    def tokens(self) -> int:
        """The tokens of the whole conversation: those that the endpoint reported, else an estimate."""
        return self.reported_tokens or len(self._text()) // _BYTES_PER_TOKEN

    def _text(self) -> bytes:
        return f"{self.record.get('messages', '')}{self.record.get('tools', '')}".encode("utf-8", "replace")

    @property
    def model(self) -> str:
        """The name of the model."""
        metadata = self.record.get("metadata")
        return str(metadata.get("model", "")) if isinstance(metadata, Mapping) else ""

    @property
    def started(self) -> str:
        """The ISO time at which the record began, or for records of earlier versions, was written."""
        metadata = self.record.get("metadata")
        written = metadata.get("timestamp") if isinstance(metadata, Mapping) else ""
        return str(self.record.get("started") or written or "")

    def prompt_digest(self) -> bytes:
        """Return a digest of the messages before the model's first answer."""
        prompt: list[tuple[Any, Any]] = []
        for message in self.messages:
            if message.get("role") == "assistant":
                break
            prompt.append((message.get("role"), message.get("content")))
        return _digest(prompt)

    def first_call_digest(self) -> bytes:
        """Return a digest of the group and the first call of the model, or of its answer if it made no call."""
        own = self.messages[self.prompt_length :]
        for message in own:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                decoded = decode_whole(str(function["arguments"]))
                arguments = decoded.value if isinstance(decoded, JsonValue) else function["arguments"]
                return _digest([self.group, "call", function["name"], arguments])
        return _digest([self.group, "answer", message_text(own[-1]) if own else ""])

    @cached_property
    def prompt_length(self) -> int:
        """The number of messages before the model's first answer. Earlier answers belong to the prompt."""
        answers = [index for index, message in enumerate(self.messages) if message.get("role") == "assistant"]
        turns = int(self.record.get("turns") or 0)
        if not answers or not turns:
            return len(self.messages)
        return answers[max(0, len(answers) - turns)]

    @cached_property
    def turns(self) -> list[TurnFacts]:
        """The facts of each turn of the model, in order. Facts that the record lacks are empty."""
        count = sum(message.get("role") == "assistant" for message in self.messages[self.prompt_length :])
        tokens = [each for each in decode_list(self.record, "tokens") if isinstance(each, dict)]
        usage = self.usage if len(self.usage) == count else [{}] * count
        tokens = tokens if len(tokens) == count else [{}] * count
        return [TurnFacts(*facts) for facts in zip(usage, tokens, strict=True)]

    def facts(self) -> dict[str, Any]:
        """Return the facts of the record beside its conversation, as JSON values."""
        names = ("solved", "trainable", "finish", "cause", "seconds")
        facts = {"id": self.id, "group": self.group, "sample": self.number, "reward": self.reward}
        facts |= {name: self.record[name] for name in names if name in self.record}
        for name in ("reward_info", "sampling", "timings", "task_metadata"):
            value = self.record.get(name)
            if value := _decode(value) if isinstance(value, str) else value:
                facts[name] = value
        return facts

    def clean_messages(self, *, reasoning: bool, signatures: bool = False) -> list[Message]:
        """Return all messages.

        Args:
            reasoning: Whether to keep the model's thinking.
            signatures: Whether to keep fields that only their provider can read.

        Raises:
            FormatProblem: If an earlier version wrote no messages.
        """
        if self.record.get("export_problem") == WITHOUT_MESSAGES:
            raise FormatProblem(WITHOUT_MESSAGES)
        return [_clean(message, reasoning=reasoning, signatures=signatures) for message in self.messages]

    def trainable_messages(self, *, reasoning: bool) -> list[Message]:
        """Return the messages up to the model's last answer, without fields that only their provider can read.

        Args:
            reasoning: Whether to keep the model's thinking.

        Raises:
            FormatProblem: As `clean_messages` and `check_answers` do.
        """
        return self.clean_messages(reasoning=reasoning)[: self.check_answers() + 1]

    def check_answers(self) -> int:
        """Return the place of the model's last answer.

        Raises:
            FormatProblem: If there is no answer, or a call that no parser understood.
        """
        for number, message in enumerate(self.messages, 1):
            if not all(call["function"]["name"] for call in message.get("tool_calls") or ()):
                raise FormatProblem(f"message {number} has a call that no parser understood")
        last = max((at for at, message in enumerate(self.messages) if message.get("role") == "assistant"), default=-1)
        if last < self.prompt_length:
            raise FormatProblem("there is no answer of the model")
        return last


def _clean(message: Message, *, reasoning: bool, signatures: bool) -> Message:
    dropped = frozenset() if signatures else _PROVIDER_FIELDS
    dropped = dropped if reasoning else dropped | _REASONING_FIELDS
    kept = {name: value for name, value in message.items() if name not in dropped and value is not None}
    if not reasoning and kept.get("role") == "assistant" and isinstance(kept.get("content"), str):
        kept["content"] = _THINKING.sub("", kept["content"], count=1) if _starts_thinking(kept) else kept["content"]
    if kept.get("tool_calls") and not signatures:
        kept["tool_calls"] = [
            {"id": str(call["id"]), "type": "function", "function": dict(call["function"])}
            for call in kept["tool_calls"]
        ]
    elif not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
    return kept


def _starts_thinking(message: Message) -> bool:
    return bool(_THINKING.match(message["content"]))


def _decode(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def arguments_object(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object. None if readers could understand them differently: they are not one
    JSON object, or repeat a key.
    """
    decoded = decode_whole(text)
    value = decoded.value if isinstance(decoded, JsonValue) else None
    return value if isinstance(value, dict) else None


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _digest(value: object) -> bytes:
    return sha256(json.dumps(value, sort_keys=True).encode()).digest()[:16]
