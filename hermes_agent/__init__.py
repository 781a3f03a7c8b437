"""A thin agent: a model's tool calls, run in a slot, until it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazily

if TYPE_CHECKING:
    from hermes_agent.episode import CallRecord, Episode, EpisodeError
    from hermes_agent.errors import ContextExceeded, ModelError
    from hermes_agent.loop import AgentLoop
    from hermes_agent.messages import Completion, Message, TokenUsage, ToolCall
    from hermes_agent.models import EmbeddedModel, Model, OpenAIModel, ScriptedModel
    from hermes_agent.parsers import get_parser

__all__ = [
    "AgentLoop",
    "CallRecord",
    "Completion",
    "ContextExceeded",
    "EmbeddedModel",
    "Episode",
    "EpisodeError",
    "Message",
    "Model",
    "ModelError",
    "OpenAIModel",
    "ScriptedModel",
    "TokenUsage",
    "ToolCall",
    "get_parser",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(
        __name__, __all__, where=("errors", "messages", "episode", "parsers", "models", "loop")
    )
