"""What the scheduler of rollouts needs of an environment."""

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
    """A `SandboxAgentEnv`, whose methods are described there; the other names are those of atroposlib."""

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
        """Its name, in messages."""

    @property
    def verifies(self) -> bool:
        """Whether it has `verify_and_score_trajectory` in the place of `compute_reward`."""

    def parser(self) -> str | Parser:
        """How the model writes tool calls."""

    def sandbox_spec(self, item: ItemT_contra) -> SandboxSpec:
        """The slot of an item."""

    def format_prompt(self, item: ItemT_contra) -> str | Sequence[Message]:
        """What the model is asked."""

    async def setup_trajectory_workspace(
        self, item: ItemT_contra, *, trajectory_id: str, exec_tool: ExecTool
    ) -> Mapping[str, Any] | None:
        """Complete the slot before the episode."""

    async def compute_reward(self, item: ItemT_contra, result: Episode, ctx: ToolContext) -> float | Verdict:
        """The reward."""

    async def verify_and_score_trajectory(
        self,
        item: ItemT_contra,
        result: Episode,
        *,
        trajectory_id: str,
        exec_tool: ExecTool,
        workspace_meta: Mapping[str, Any],
    ) -> tuple[float, Mapping[str, Any]]:
        """The reward and further facts."""
