"""Environments without a server or a tokenizer: what their hooks do."""

from __future__ import annotations

from typing import Any, TypeVar

from hermes_atropos.env import SandboxAgentEnv

T = TypeVar("T", bound=SandboxAgentEnv[Any])


def bare(kind: type[T], **options: Any) -> T:
    """An environment that has nothing but its configuration."""
    env = object.__new__(kind)
    env.config = kind.env_config_cls(**options)
    return env
