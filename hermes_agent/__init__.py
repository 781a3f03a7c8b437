"""A thin agent: runs a model's tool calls in a slot until the model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_agent.artifacts import Artifacts, CollectedFiles
    from hermes_agent.context import Context, ShortenOldResults
    from hermes_agent.context_summary import SummariseOldTurns
    from hermes_agent.episode import CallCounts, CallRecord, Episode, EpisodeError
    from hermes_agent.errors import (
        AccessRefused,
        ContentFiltered,
        ContextExceeded,
        EndpointAway,
        EndpointFailing,
        ModelError,
        RequestRefused,
    )
    from hermes_agent.hooks import Hooks, Turn
    from hermes_agent.loop import AgentLoop
    from hermes_agent.messages import (
        AnswerProblem,
        Completion,
        CompletionUsage,
        Message,
        TokenUsage,
        ToolCall,
        TurnTokens,
    )
    from hermes_agent.models import (
        EmbeddedModel,
        Model,
        ModelSession,
        OpenAIModel,
        Prices,
        ReplicatedModel,
        ScriptedModel,
        SessionModel,
    )
    from hermes_agent.parsers import get_parser, get_renderer
    from hermes_agent.rollout import Rollout
    from hermes_agent.rollout_result import RolloutResult, Timings
    from hermes_agent.scoring import CheckFailed, CommandCheck, Scoring, Verdict, score
    from hermes_agent.shared_set_up import SharedSetUp

__all__ = [
    "AccessRefused",
    "AgentLoop",
    "AnswerProblem",
    "Artifacts",
    "CallCounts",
    "CallRecord",
    "CheckFailed",
    "CollectedFiles",
    "CommandCheck",
    "Completion",
    "CompletionUsage",
    "ContentFiltered",
    "Context",
    "ContextExceeded",
    "EmbeddedModel",
    "EndpointAway",
    "EndpointFailing",
    "Episode",
    "EpisodeError",
    "Hooks",
    "Message",
    "Model",
    "ModelError",
    "ModelSession",
    "OpenAIModel",
    "Prices",
    "ReplicatedModel",
    "RequestRefused",
    "Rollout",
    "RolloutResult",
    "Scoring",
    "ScriptedModel",
    "SessionModel",
    "SharedSetUp",
    "ShortenOldResults",
    "SummariseOldTurns",
    "Timings",
    "TokenUsage",
    "ToolCall",
    "Turn",
    "TurnTokens",
    "Verdict",
    "get_parser",
    "get_renderer",
    "score",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        __all__,
        where=(
            "errors",
            "messages",
            "episode",
            "context",
            "context_summary",
            "hooks",
            "parsers",
            "models",
            "loop",
            "scoring",
            "artifacts",
            "rollout_result",
            "rollout",
        ),
    )
