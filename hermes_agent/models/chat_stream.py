"""Assembles a streamed chat completion from its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_agent.models.chat_answer import as_list, as_mapping
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers.base import is_whole
from hermes_agent.parsers.json_text import JsonValue, decode_whole

_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary", None: "text"}
"""The text that comes in pieces, for each type of reasoning detail that has one. Others come whole."""


class ChunkAssembler:
    """Collects the chunks of one stream. `answer` then returns the answer for `read_answer`.

    It accepts the chunks of OpenAI, vLLM, SGLang, OpenRouter and Gemini: `delta.tool_calls` by `index` (and by `id`,
    because Gemini writes several calls with index 0), texts and `reasoning_details` in pieces, `extra_content` whole,
    `usage` in any chunk.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[Any]] = {name: [] for name in _TEXTS}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[object, dict[str, Any]] = {}
        """The call that a delta with this index continues."""
        self._details: list[dict[str, Any]] = []
        self._extra: object = None
        self._whole: Mapping[str, Any] | None = None
        self._finish: object = None
        self._usage: object = None
        self._begun = False

    @property
    def finished(self) -> bool:
        """Whether the finish reason has come. Usage may follow."""
        return self._finish is not None

    def add(self, chunk: object) -> None:
        """Add a chunk. Raise BadAnswer if it is an error."""
        fields = as_mapping(chunk)
        choices = as_list(fields.get("choices"))
        choice = next((each for each in map(as_mapping, choices) if each.get("index") in (0, None)), {})
        error = fields.get("error") or choice.get("error")
        if not error and "choices" not in fields:
            # The body of an error of web frameworks has no key `error`.
            error = fields.get("detail") or fields.get("message")
        if error or fields.get("object") == "error" or choice.get("finish_reason") == "error":
            raise BadAnswer(f"it broke off: {as_mapping(error).get('message') or error or fields.get('message')}")
        usage = fields.get("usage") or choice.get("usage")  # Moonshot writes it into the choice
        if isinstance(usage, Mapping):
            self._usage = usage
        if choice.get("finish_reason"):
            # Some servers write an empty one in each earlier chunk.
            self._finish = choice["finish_reason"]
        if isinstance(choice.get("delta"), Mapping):
            self._begun = True
            self._add_delta(choice["delta"])
        elif isinstance(choice.get("message"), Mapping):
            self._whole = choice["message"]

    def is_progress(self, chunk: object) -> bool:
        """Return whether a chunk brings a piece of the answer: some servers keep the connection alive with empty
        chunks.
        """
        for choice in map(as_mapping, as_list(as_mapping(chunk).get("choices"))):
            message = as_mapping(choice.get("delta") or choice.get("message"))
            if choice.get("finish_reason") or any(value for name, value in message.items() if name != "role"):
                return True
        return False

    def answer(self, *, ended: bool) -> dict[str, Any]:
        """Return the whole answer. `ended` means that the stream was closed with `[DONE]`.

        Raises:
            BadAnswer: If the stream broke off before the answer was complete.
        """
        if not self.finished and not (ended and (self._begun or self._whole is not None)):
            raise BadAnswer(
                "the stream broke off before the answer was complete" if self._begun else "the stream is empty"
            )
        if not self.finished and self._usage is None and self._may_be_cut():
            raise BadAnswer("the stream ended without a reason, in a call that may be incomplete")
        message = dict(self._whole or {}) if not self._begun else self._message()
        return {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}

    def _may_be_cut(self) -> bool:
        """Return whether the stream ends with a call whose arguments are not an object, or an empty one."""
        calls = [_whole_call(call)["function"]["arguments"] for call in self._calls[-1:]]
        return any(isinstance(arguments, str | None) and not is_whole(arguments or "") for arguments in calls)

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {name: _join_pieces(pieces) for name, pieces in self._texts.items() if pieces}
        if self._calls:
            message["tool_calls"] = [_whole_call(call) for call in self._calls]
        if self._details:
            message["reasoning_details"] = [_join_detail(detail) for detail in self._details]
        if self._extra is not None:
            message["extra_content"] = self._extra
        return message

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name, pieces in self._texts.items():
            piece = delta.get(name)
            if isinstance(piece, list):
                pieces += piece
            elif isinstance(piece, str) and piece:
                pieces.append(piece)
        for call in as_list(delta.get("tool_calls")):
            self._add_call(as_mapping(call))
        for detail in as_list(delta.get("reasoning_details")):
            self._add_detail(detail)
        if delta.get("extra_content") is not None:
            self._extra = delta["extra_content"]

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        function = as_mapping(delta.get("function"))
        name, arguments, index = function.get("name"), function.get("arguments"), delta.get("index")
        index = index if isinstance(index, int | str) else None
        last = self._calls[-1] if self._calls else None
        call = last if index is None else self._at.get(index)
        if call is None or (name and _begins_another(call, delta, name, arguments)):
            call = {"id": None, "name": "", "arguments": None}
            self._calls.append(call)
        if index is not None:
            self._at[index] = call
        call["id"] = call["id"] or delta.get("id") or None
        if isinstance(name, str) and name != call["name"]:
            # Most servers write the whole name in the first piece, some in each piece, and few in parts.
            call["name"] += name
        if arguments is not None:
            call["arguments"] = call["arguments"] or []
            call["arguments"].append(arguments)
        if delta.get("extra_content") is not None:
            call["extra_content"] = delta["extra_content"]

    def _add_detail(self, piece: object) -> None:
        if not isinstance(piece, Mapping) or not isinstance(piece.get("type"), str | None):
            return
        grows = _GROWING.get(piece.get("type"))
        detail = self._open_detail(piece) if grows else None
        if detail is None:
            detail = {}
            self._details.append(detail)
        for name, value in piece.items():
            if name == grows and isinstance(value, str):
                if not isinstance(detail.get(name), list):
                    detail[name] = []
                detail[name].append(value)
            elif value is not None or name not in detail:
                detail[name] = value

    def _open_detail(self, piece: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the detail that a piece continues: the one with its index, or without an index the last detail."""
        among = self._details if piece.get("index") is not None else self._details[-1:]
        key = (piece.get("type"), piece.get("index"))
        return next((each for each in among if (each.get("type"), each.get("index")) == key), None)


def _begins_another(call: Mapping[str, Any], delta: Mapping[str, Any], name: object, arguments: object) -> bool:
    """Return whether a delta with a name begins another call than `call`, which has its index or, without one, is the
    last.

    Ids decide. Without them some servers number every call 0, and others write the name in each piece, or in pieces.
    """
    if call_id := delta.get("id"):
        return bool(call["name"]) and call_id != call["id"]
    if not isinstance(delta.get("index"), int | str):
        return True
    text = "".join(piece for piece in call["arguments"] or () if isinstance(piece, str))
    if name != call["name"]:
        return bool(text)
    begins = isinstance(arguments, str) and arguments.lstrip().startswith("{")
    return begins and isinstance(decode_whole(text), JsonValue)


def _join_pieces(pieces: list[Any]) -> object:
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    return [{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces]


def _join_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    name = _GROWING.get(detail.get("type"))
    pieces = detail.get(name) if name else None
    if name is None or not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        return dict(detail)
    return {**detail, name: "".join(pieces)}


def _whole_call(call: Mapping[str, Any]) -> dict[str, Any]:
    pieces = call["arguments"]
    arguments = (
        "".join(pieces) if pieces and all(isinstance(piece, str) for piece in pieces) else (pieces or [None])[-1]
    )
    whole = {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}
    return whole | ({"extra_content": call["extra_content"]} if "extra_content" in call else {})
