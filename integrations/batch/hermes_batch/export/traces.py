"""Agent traces, as `datasets` and the trace viewer of the Hugging Face Hub read them: one file for each session."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, ClassVar

from hermes_agent.messages import Message, calls_of, message_text
from hermes_batch.export.example import FormatProblem, TrainingExample, TurnFacts, arguments_object
from hermes_batch.export.images import image_type, image_url, is_link, read_image
from hermes_batch.export.writers import FileWriter, RenderedFile
from hermes_batch.index import encode_line

_TOOLS = "teich-available-tools"
"""The type of the entry in which `datasets` (its converter is `teich`) finds the schemas of the tools."""


class TraceWriter(FileWriter):
    """Writes sessions in the format of the Pi agent, with `harness` in the header.

    Of the formats that the Hub shows, `datasets` loads this one with thinking, calls and tools.
    """

    suffix: ClassVar = ".jsonl"

    def render(self, example: TrainingExample) -> RenderedFile:
        """Return the lines of a session."""
        entries = [_HEADER | {"id": example.name, "name": example.id, "timestamp": example.started}]
        entries[0]["metadata"] = example.facts()
        parent = None
        for number, entry in enumerate(_entries(example, reasoning=self._options.reasoning), 1):
            entry_id = f"{number:08x}"
            entries.append({"id": entry_id, "parentId": parent, "timestamp": example.started, **entry})
            parent = entry_id
        return RenderedFile(b"".join(map(encode_line, entries)), {})


_HEADER: dict[str, Any] = {"type": "session", "version": 3, "harness": "hermes-exec"}


def _entries(example: TrainingExample, *, reasoning: bool) -> Iterator[dict[str, Any]]:
    yield {"type": "model_change", "provider": "", "modelId": example.model}
    yield {"type": "custom", "customType": _TOOLS, "data": {"tools": example.tools}}
    failed = {str(call.get("tool_call_id")) for call in example.calls if not call.get("ok")}
    turns = iter(example.turns)
    for at, message in enumerate(example.trainable_messages(reasoning=reasoning)):
        if message["role"] == "assistant":
            content = _answer(example, message, next(turns) if at >= example.prompt_length else TurnFacts({}, {}))
        elif message["role"] == "tool":
            call_id = str(message.get("tool_call_id") or "")
            content = {"role": "toolResult", "toolCallId": call_id, "toolName": str(message.get("name") or "")}
            content |= {"content": _blocks(example, message), "isError": call_id in failed}
        else:
            content = {"role": message["role"], "content": _blocks(example, message)}
        yield {"type": "message", "message": content}


def _answer(example: TrainingExample, message: Message, turn: TurnFacts) -> dict[str, Any]:
    thinking = str(message.get("reasoning_content") or "")
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": thinking}] if thinking else []
    blocks += _blocks(example, message)
    calls = calls_of(message)
    for call in calls:
        arguments = arguments_object(call.arguments)
        if not _fits(_read_text(call.arguments) if arguments is None else arguments):
            raise FormatProblem("a call has a number of more than 64 bits, with which `datasets` reads no message")
        arguments_or_text = call.arguments if arguments is None else arguments
        blocks.append({"type": "toolCall", "id": call.id, "name": call.name, "arguments": arguments_or_text})
    cut = turn.usage.get("finish_reason") == "length"
    reason = "length" if cut else "toolUse" if calls else "stop"
    answer = {"role": "assistant", "content": blocks, "provider": "", "model": example.model, "stopReason": reason}
    return answer | {"usage": _usage(turn.usage)} if turn.usage else answer


def _read_text(text: str) -> object:
    """Return the value that a reader makes of arguments that are text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _fits(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, list):
        return all(map(_fits, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    prompt, completion, cached = (int(usage.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion", "cached"))
    cost = float(usage.get("cost") or 0)
    none = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    counts = none | {"input": prompt - cached, "output": completion, "cacheRead": cached}
    return {**counts, "totalTokens": prompt + completion, "cost": {**none, "total": cost}}


def _blocks(example: TrainingExample, message: Message) -> list[dict[str, Any]]:
    """Return the text and the images of a message."""
    content = message.get("content")
    if not isinstance(content, list):
        text = message_text(message)
        return [{"type": "text", "text": text}] if text else []
    return [
        {"type": "text", "text": str(part.get("text", ""))} if part.get("type") == "text" else _image(example, part)
        for part in content
    ]


def _image(example: TrainingExample, part: Message) -> dict[str, Any]:
    url = image_url(part)
    if is_link(url):
        raise FormatProblem(f"the image {url[:80]} is a link, and traces hold images")
    data = b64encode(read_image(example.run, url)).decode()
    return {"type": "image", "data": data, "mimeType": image_type(url)}
