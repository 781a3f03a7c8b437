"""The interface of an environment that the rollout scheduler uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    from hermes_agent import Episode, Message, Verdict
    from hermes_agent.parsers import Parser
    from hermes_atropos.config import SandboxEnvConfig
    from hermes_atropos.context import ExecTool, ToolContext
    from hermes_atropos.reachability import ReachabilityCheck
    from hermes_atropos.spec import SandboxSpec
    from hermes_exec import SandboxPool

ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Environment(Protocol[ItemT_contra]):
    """A `SandboxAgentEnv`, where the methods are described. The other names come from atroposlib."""

    config: SandboxEnvConfig
    pool: SandboxPool
    reachability: ReachabilityCheck
    server: Any
    tokenizer: Any
    curr_step: int
    max_token_len: int
    workers: set[asyncio.Task[Any]]
    eval_workers: set[asyncio.Task[Any]]
    eval_runner: asyncio.Task[Any] | None
    backlog: Collection[Any]

    @property
    def name(self) -> str | None:
        """The name of the environment for messages."""

    @property
    def verifies(self) -> bool:
        """Whether the environment defines `verify_and_score_trajectory` instead of `compute_reward`."""

    def parser(self) -> str | Parser:
        """Return the format in which the model writes tool calls."""

    def sandbox_spec(self, item: ItemT_contra) -> SandboxSpec:
        """Return the slot of an item."""

    def format_prompt(self, item: ItemT_contra) -> str | Sequence[Message]:
        """Return the prompt of an item."""

    async def setup_trajectory_workspace(
        self, item: ItemT_contra, *, trajectory_id: str, exec_tool: ExecTool
    ) -> Mapping[str, Any] | None:
        """Prepare the slot before the episode."""

    async def compute_reward(self, item: ItemT_contra, result: Episode, ctx: ToolContext) -> float | Verdict:
        """Return the reward."""

    async def verify_and_score_trajectory(
        self,
        item: ItemT_contra,
        result: Episode,
        *,
        trajectory_id: str,
        exec_tool: ExecTool,
        workspace_meta: Mapping[str, Any],
    ) -> tuple[float, Mapping[str, Any]]:
        """Return the reward and more facts."""
