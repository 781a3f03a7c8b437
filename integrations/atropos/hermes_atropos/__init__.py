"""RL environments for atropos trainers. Each rollout is an agent episode in an isolated slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_atropos.config import SandboxEnvConfig
    from hermes_atropos.context import ExecTool, ToolContext, ToolOutcome
    from hermes_atropos.env import SandboxAgentEnv
    from hermes_atropos.errors import EnvironmentStopped
    from hermes_atropos.evaluation import EvaluatedItem
    from hermes_atropos.spec import SandboxSpec

__all__ = [
    "EnvironmentStopped",
    "EvaluatedItem",
    "ExecTool",
    "SandboxAgentEnv",
    "SandboxEnvConfig",
    "SandboxSpec",
    "ToolContext",
    "ToolOutcome",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__, __all__, where=("errors", "spec", "context", "evaluation", "config", "env")
    )
