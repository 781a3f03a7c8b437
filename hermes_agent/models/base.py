"""The protocols of a model: one method, or a session for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hermes_agent.messages import Completion, Message


@runtime_checkable
class Model(Protocol):
    """Any object that completes a conversation. One object serves many episodes at the same time."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Answer the conversation. `tools` are function schemas in OpenAI form. The messages are never changed.

        `sampling` are the parameters of chat completion interfaces (`temperature`, `max_tokens`, `top_p`, `seed`,
        `stop`, …); None means the model's own default. `tool_choice="none"` requests an answer without calls while the
        tools stay in the prompt.

        Raises:
            ModelError: If the completion fails.
            ContextExceeded: If the conversation is too long.
        """
        ...


class ModelSession(Protocol):
    """A model in one episode. It may keep state of earlier calls, such as token ids."""

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        """Answer the conversation, as `Model.complete` does.

        `messages` are the whole conversation, not only the new messages, and start with the messages of the previous
        call. A retry after an error is safe: a session changes only when it returns a completion.
        """
        ...

    async def aclose(self) -> None:
        """Free the resources of the session. The model itself stays usable."""
        ...


@runtime_checkable
class SessionModel(Protocol):
    """A model that makes a session for each episode, for example to keep exact token ids."""

    def session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        """Return a new session, for one episode with these tools."""
        ...


class _StatelessSession:
    """The session of a model without sessions."""

    def __init__(self, model: Model, tools: Sequence[Mapping[str, Any]]) -> None:
        self._model, self._tools = model, tools

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        return await self._model.complete(messages, self._tools, **sampling)

    async def aclose(self) -> None:
        pass


def open_session(model: Model | SessionModel, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
    """Return the session of one episode: the model's own if it makes sessions."""
    return model.session(tools) if isinstance(model, SessionModel) else _StatelessSession(model, tools)
