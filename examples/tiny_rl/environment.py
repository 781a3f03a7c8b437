"""Write lowercase letters: a tool call or a harness writes every sampled turn to a file in the slot, and the reward is
the share of lowercase letters in that file.
"""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

from hermes_agent import Episode, ToolCall
from hermes_agent.parsers import ParsedText, Parser
from hermes_agent.parsers.base import Tools, derive_id
from hermes_atropos import SandboxAgentEnv, SandboxEnvConfig, SandboxSpec, ToolContext

TURNS, TURN_TOKENS = 2, 16
HARNESS = Path(__file__).with_name("harness.py")
LETTERS = b"abcdefghijklmnopqrstuvwxyz"


class TinyRLConfig(SandboxEnvConfig):
    """The settings of the environment."""

    max_agent_turns: int = TURNS
    max_tokens_per_turn: int | None = TURN_TOKENS
    enabled_toolsets: str = "terminal"
    writes: bool = True
    harness: bool = False
    """Whether `harness.py` runs in the slot in place of the agent loop."""


class TinyRLEnv(SandboxAgentEnv[int]):
    """Lowercase letters in a file."""

    name = "tiny_rl"
    env_config_cls = TinyRLConfig
    config: TinyRLConfig

    async def setup(self) -> None:
        """Start counting the items."""
        self._count = itertools.count()

    async def get_next_item(self) -> int:
        """Return a number. All tasks are the same."""
        return next(self._count)

    def format_prompt(self, item: int) -> str:
        """Return a prompt, although a policy with 58,000 parameters cannot read it."""
        return "Write letters."

    def parser(self) -> Parser:
        """Return a parser that turns any text into a call that appends it to the file, or leaves it to the harness."""
        if self.config.harness:
            return lambda text, _tools: ParsedText(text)

        def read(text: str, _tools: Tools) -> ParsedText:
            encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
            command = f"echo {encoded} | base64 -d >> turns.txt" if self.config.writes else "true"
            arguments = f'{{"command": "{command}"}}'
            return ParsedText(None, calls=(ToolCall(derive_id(text), "terminal", arguments),))

        return read

    def sandbox_spec(self, item: int) -> SandboxSpec:
        """Return a spec that keeps only the file for the check."""
        if not self.config.harness:
            return SandboxSpec(keep=["turns.txt"])
        program = ["python3", "harness.py", "{task}", *([] if self.config.writes else ["--no-writes"])]
        return SandboxSpec(files={"harness.py": HARNESS}, program=program, keep=["turns.txt"])

    async def compute_reward(self, item: int, result: Episode, ctx: ToolContext) -> float:
        """Return the share of lowercase letters among all bytes that the episode can write."""
        if not await ctx.slot.files.exists("turns.txt"):
            return 0.0
        content = await ctx.slot.files.read_bytes("turns.txt")
        return sum(byte in LETTERS for byte in content) / (TURNS * TURN_TOKENS)


if __name__ == "__main__":
    TinyRLEnv.cli()
