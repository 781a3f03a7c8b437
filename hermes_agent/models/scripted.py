"""A model that answers from a script: for tests, and for running an agent without any model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from hermes_agent.errors import ModelError
from hermes_agent.messages import Completion, Message, ToolCall
from hermes_agent.parsers import get_parser
from hermes_agent.parsers.base import derive_id

ScriptStep = (
    Completion | str | Exception | Callable[[Sequence[Message]], "Completion | str | Awaitable[Completion | str]"]
)


class ScriptedRequest(NamedTuple):
    """A request to a `ScriptedModel`."""

    messages: list[Message]
    tools: list[Mapping[str, Any]]
    sampling: dict[str, Any]


class ScriptedModel:
    """Answers from a script, one step per request, in order. A request beyond the last step is a ModelError.

    `requests` holds the requests.

    Args:
        steps: Each is a `Completion`, a text, an exception (raised), or a function of the messages, sync or async, that
            returns a completion or a text.
        parser: The format of texts, so `<tool_call>…</tool_call>` in a text is a call.
    """

    def __init__(self, steps: Iterable[ScriptStep], *, parser: str = "hermes") -> None:
        self._steps = iter(steps)
        self._parse = get_parser(parser)
        self.requests: list[ScriptedRequest] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Return the next step; see `Model.complete`."""
        self.requests.append(ScriptedRequest(deepcopy(list(messages)), list(tools), sampling))
        try:
            step = next(self._steps)
        except StopIteration:
            raise ModelError(f"the script has no step for request {len(self.requests)}") from None
        if isinstance(step, Exception):
            raise step
        answer: object = step
        if callable(step):
            answer = step(messages)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, Completion):
            return answer
        return self._parse(str(answer), tools).completion(str(answer))


def call(name: str, arguments: Mapping[str, object], *, call_id: str | None = None) -> ToolCall:
    """Return a well-formed call for a script. The id is derived from the name and the arguments by default."""
    text = json.dumps(dict(arguments), ensure_ascii=False)
    return ToolCall(call_id or derive_id(name, text), name, text)
