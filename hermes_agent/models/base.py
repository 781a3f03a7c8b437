"""The one method that makes something a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hermes_agent.messages import Completion, Message


class Model(Protocol):
    """Anything that completes a conversation. One object serves many episodes at the same time."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Answer the conversation; `tools` are function schemas in OpenAI form.

        `sampling` are the parameters of chat completion interfaces (`temperature`, `max_tokens`, `top_p`, `seed`,
        `stop`, …); None means the model's own default. `tool_choice="none"` asks for an answer without calls while the
        tools stay in the prompt. Raises ModelError, and ContextExceeded when the conversation is too long. The
        messages are never changed.
        """
        ...
