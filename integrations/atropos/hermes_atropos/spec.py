"""The slot of an item, the agent that works in it, and how its work is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_agent.gateway import Gateway, Harness
from hermes_agent.scoring import Files, ScoreIn
from hermes_exec import ConfigError
from hermes_exec.tools import HostTool

if TYPE_CHECKING:
    from hermes_atropos.config import SandboxEnvConfig


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """The return value of `SandboxAgentEnv.sandbox_spec` for an item.

    `image` (None: the environment's), `profile` and `workdir` choose the slot, as in `SandboxPool.slot`; limits belong
    to a profile. `files` (path below `slot.workdir` to a text, bytes, or the `Path` of a local file or directory) are
    copied into the slot, and the model's terminal starts in `cwd`. `toolsets` replace the toolsets of the group, and
    `tools` are additional functions of the environment (`@tool`). `score_in`, `keep` and `check_files` define how the
    work is scored (see `hermes_agent.Scoring`). `loop` holds arguments of `AgentLoop` for this item (`max_turns`,
    `deadline_s`, …).

    `program` is a harness that runs in the slot in place of the agent loop, as in `hermes_agent.Rollout`: the prompt is
    then its task, and toolsets, `tools` and `loop` are not for it. `env` are its variables, and `gateway` holds
    arguments of `Gateway` for this item (`max_requests`, `models`, …).
    """

    image: str | None = None
    profile: str | None = None
    workdir: str | None = None
    cwd: str | None = None
    files: Files = field(default_factory=dict)
    toolsets: Sequence[str] | None = None
    tools: Sequence[HostTool] = ()
    score_in: ScoreIn = "sealed"
    keep: Sequence[str] | None = None
    check_files: Files = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    program: str | Sequence[str] | Harness | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    gateway: Mapping[str, Any] = field(default_factory=dict)


def agent_options(spec: SandboxSpec, config: SandboxEnvConfig, toolsets: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `Rollout` for the agent loop with these toolsets, or for the program of an item.

    Raises:
        ConfigError: If `gateway` has a name that `Gateway` does not accept.
    """
    if spec.program is None:
        loop = {
            "max_turns": config.max_agent_turns,
            "max_tokens": config.max_tokens_per_turn,
            "parallel_calls": config.parallel_calls,
            "temperature": config.agent_temperature,
            "sampling": config.further_sampling,
            "deadline_s": config.deadline_s,
            **spec.loop,
        }
        chosen = toolsets if spec.toolsets is None else spec.toolsets
        options = {"toolsets": chosen, "tools": spec.tools or None, "tool_options": config.tool_options, "loop": loop}
        return {**options, "env": spec.env or None, "gateway": _gateway(spec.gateway) if spec.gateway else None}
    sampling = dict(config.sampling_parameters)
    if config.max_tokens_per_turn is not None:
        sampling["max_tokens"] = config.max_tokens_per_turn
    return {
        "program": spec.program,
        "env": spec.env,
        "deadline_s": config.deadline_s,
        "gateway": _gateway({"max_requests": config.max_agent_turns, "sampling": sampling, **spec.gateway}),
        # Rollout refuses these beside a program.
        "toolsets": spec.toolsets,
        "tools": spec.tools or None,
        "loop": spec.loop,
    }


def _gateway(options: Mapping[str, Any]) -> Gateway:
    try:
        return Gateway(**options)
    except TypeError as error:
        raise ConfigError(f"SandboxSpec.gateway: {error}") from error
