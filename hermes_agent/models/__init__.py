"""Models: any object with `complete`, and the ones in this package."""

from __future__ import annotations

from hermes_agent.models.base import Model, ModelSession, SessionModel
from hermes_agent.models.embedded.embedded import EmbeddedModel
from hermes_agent.models.openai import OpenAIModel
from hermes_agent.models.prices import Prices
from hermes_agent.models.replicated import ReplicatedModel
from hermes_agent.models.scripted import ScriptedModel

__all__ = [
    "EmbeddedModel",
    "Model",
    "ModelSession",
    "OpenAIModel",
    "Prices",
    "ReplicatedModel",
    "ScriptedModel",
    "SessionModel",
]
