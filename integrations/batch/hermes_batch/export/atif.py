"""ATIF, the Agent Trajectory Interchange Format of harbor: one JSON document for each record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from hermes_agent.messages import Message, calls_of, message_text
from hermes_batch.export.example import TrainingExample, TurnFacts, arguments_object
from hermes_batch.export.images import image_type, image_url, is_link, read_image
from hermes_batch.export.writers import FileWriter, RenderedFile

VERSION = "ATIF-v1.8"


class ATIFWriter(FileWriter):
    """Writes trajectories of ATIF 1.8, with images as files beside them.

    Results are observations of the step that called the tools. A step of the model has its tokens and cost and, if the
    model returned them, the token ids and log-probabilities. Answers that belong to the prompt are marked as copied.
    """

    suffix: ClassVar = ".json"

    def render(self, example: TrainingExample) -> RenderedFile:
        """Return the document of a record."""
        steps = _Steps(example, reasoning=self._options.reasoning)
        document = {
            "schema_version": VERSION,
            "session_id": example.key,
            "trajectory_id": example.name,
            "agent": {
                "name": "hermes-exec",
                "version": str(example.record.get("version") or "unknown"),
                **({"model_name": example.model} if example.model else {}),
                **({"tool_definitions": example.tools} if example.tools else {}),
            },
            "steps": steps.steps,
            "final_metrics": {
                **{f"total_{name}": value for name, value in _metrics(example.record).items()},
                "total_steps": len(steps.steps),
            },
            "extra": example.facts(),
        }
        text = json.dumps(document, ensure_ascii=False, indent=1)
        return RenderedFile(text.encode("utf-8", "replace") + b"\n", steps.images)


class _Steps:
    """The steps of a conversation, and its images by their file names."""

    def __init__(self, example: TrainingExample, *, reasoning: bool) -> None:
        self._example = example
        self.steps: list[dict[str, Any]] = []
        self.images: dict[str, bytes] = {}
        self._names: dict[str, str] = {}
        self._calls: dict[str, list[dict[str, Any]]] = {}
        self._prompt_ids: list[int] = []
        for call in example.calls:
            self._calls.setdefault(str(call.get("tool_call_id")), []).append(call)
        turns = iter(example.turns)
        for at, message in enumerate(example.clean_messages(reasoning=reasoning)):
            role = message.get("role")
            if role == "tool" and self.steps:
                self._add_result(message)
            elif role == "assistant" and at < example.prompt_length:
                self._add("agent", message, _answer(message) | {"is_copied_context": True})
            elif role == "assistant":
                self._add("agent", message, _answer(message) | self._turn(next(turns)))
            else:
                self._add("system" if role == "system" else "user", message, {})
        if self.steps and example.started:
            self.steps[0]["timestamp"] = example.started

    def _add(self, source: str, message: Message, more: Mapping[str, Any]) -> None:
        step = {"step_id": len(self.steps) + 1, "source": source, "message": self._content(message), **more}
        self.steps.append(step)

    def _add_result(self, message: Message) -> None:
        """Add a result to the step before it."""
        step, call_id = self.steps[-1], str(message.get("tool_call_id") or "")
        result: dict[str, Any] = {"content": self._content(message)}
        if call_id in [call["tool_call_id"] for call in step.get("tool_calls", ())]:
            result["source_call_id"] = call_id
        if facts := self._calls.get(call_id):
            names = ("ok", "error_kind", "duration_s")
            result["extra"] = {name: value for name, value in facts.pop(0).items() if name in names}
        step.setdefault("observation", {"results": []})["results"].append(result)

    def _turn(self, turn: TurnFacts) -> dict[str, Any]:
        """Return the metrics of a turn."""
        metrics: dict[str, Any] = _metrics(turn.usage)
        more = {name: turn.usage[name] for name in ("reasoning_tokens", "finish_reason") if turn.usage.get(name)}
        if turn.tokens:
            before = [] if turn.tokens.get("restarts") else self._prompt_ids
            prompt = [*before, *turn.tokens["added"]]
            self._prompt_ids = [*prompt, *turn.tokens["ids"]]
            metrics |= {"prompt_token_ids": prompt, "completion_token_ids": turn.tokens["ids"]}
            if turn.tokens.get("logprobs") is not None:
                metrics["logprobs"] = turn.tokens["logprobs"]
        if more:
            metrics["extra"] = more
        return {"metrics": metrics} if metrics else {}

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        content = message.get("content")
        if not isinstance(content, list):
            return message_text(message)
        return [
            {"type": "text", "text": str(part.get("text", ""))} if part.get("type") == "text" else self._image(part)
            for part in content
        ]

    def _image(self, part: Message) -> dict[str, Any]:
        url = image_url(part)
        source = {"media_type": image_type(url), "path": url if is_link(url) else self._file(url)}
        return {"type": "image", "source": source}

    def _file(self, url: str) -> str:
        """Return the name of an image's copy."""
        if url not in self._names:
            name = f"{self._example.name}-{len(self._names) + 1}.{url.rpartition('.')[2]}"
            self.images[name] = read_image(self._example.run, url)
            self._names[url] = name
        return self._names[url]


def _answer(message: Message) -> dict[str, Any]:
    """Return the thinking and the calls of an answer."""
    answer: dict[str, Any] = {}
    if message.get("reasoning_content"):
        answer["reasoning_content"] = str(message["reasoning_content"])
    calls = []
    for call in calls_of(message):
        arguments = arguments_object(call.arguments)
        text = {} if arguments is not None else {"extra": {"arguments_text": call.arguments}}
        calls.append({"tool_call_id": call.id, "function_name": call.name, "arguments": arguments or {}, **text})
    return answer | {"tool_calls": calls} if calls else answer


def _metrics(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that a record or a turn has."""
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    metrics: dict[str, Any] = {name: int(usage[name]) for name in names if usage.get(name)}
    if usage.get("cost"):
        metrics["cost_usd"] = float(usage["cost"])
    return metrics
