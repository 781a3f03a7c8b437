"""Where an item is worked on, and how it is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_agent.scoring import Files, ScoreIn
from hermes_exec.tools import HostTool


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What `SandboxAgentEnv.sandbox_spec` says of an item.

    `image` (None: that of the environment), `profile` and `workdir` choose the slot, as in `SandboxPool.slot`; limits
    are a profile's. `files` (path below `slot.workdir` to a text, bytes, or the `Path` of a file or directory here) are
    put into it, and the model's terminal starts in `cwd`. `toolsets` take the place of those of the group, `tools`
    are functions of the environment (`@tool`) beside them. `score_in`, `keep` and `check_files` say how the work is
    scored (see `hermes_agent.Scoring`). `loop` are arguments of `AgentLoop` for this item (`max_turns`, `deadline_s`,
    …).
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
