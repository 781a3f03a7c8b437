"""What makes something a model: one method, or a session for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hermes_agent.messages import Completion, Message


@runtime_checkable
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


class ModelSession(Protocol):
    """A model in one episode: it may remember what it was asked before, such as token ids."""

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        """As `Model.complete`; `messages` are all of the conversation, not only the new ones, and start with those of
        the call before. Asking again after an error is safe: a session changes only when it returns a completion.
        """
        ...

    async def aclose(self) -> None:
        """Free what the session holds; the model itself goes on."""
        ...


@runtime_checkable
class SessionModel(Protocol):
    """A model that makes a session for each episode, such as one that keeps exact token ids."""

    def session(self, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
        """A new session, for one episode with these tools."""
        ...


class _StatelessSession:
    """The session of a model that has none of its own."""

    def __init__(self, model: Model, tools: Sequence[Mapping[str, Any]]) -> None:
        self._model, self._tools = model, tools

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        return await self._model.complete(messages, self._tools, **sampling)

    async def aclose(self) -> None:
        pass


def open_session(model: Model | SessionModel, tools: Sequence[Mapping[str, Any]]) -> ModelSession:
    """The session of one episode: the model's own where it makes some."""
    return model.session(tools) if isinstance(model, SessionModel) else _StatelessSession(model, tools)
