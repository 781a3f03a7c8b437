"""The slot of an item and how its work is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_agent.scoring import Files, ScoreIn
from hermes_exec.tools import HostTool


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """The return value of `SandboxAgentEnv.sandbox_spec` for an item.

    `image` (None: the environment's), `profile` and `workdir` choose the slot, as in `SandboxPool.slot`; limits belong
    to a profile. `files` (path below `slot.workdir` to a text, bytes, or the `Path` of a local file or directory) are
    copied into the slot, and the model's terminal starts in `cwd`. `toolsets` replace the toolsets of the group, and
    `tools` are additional functions of the environment (`@tool`). `score_in`, `keep` and `check_files` define how the
    work is scored (see `hermes_agent.Scoring`). `loop` holds arguments of `AgentLoop` for this item (`max_turns`,
    `deadline_s`, …).
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
