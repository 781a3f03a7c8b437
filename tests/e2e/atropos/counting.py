"""An environment whose episodes are of any number of turns, with a model for it.

`python -m tests.e2e.atropos.counting TOKENIZER TURNS` serves the model until stdin ends; its URL is the first line.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path

import anyio

from hermes_agent import Episode
from hermes_atropos import SandboxAgentEnv, SandboxEnvConfig, ToolContext
from tests.e2e.atropos.inference_server import PolicyServer, call, load, serving


class CountingConfig(SandboxEnvConfig):
    """`turns` of an episode: one less than so many tool calls, and an answer."""

    turns: int = 20


class CountingEnv(SandboxAgentEnv[int]):
    """Each turn of an episode appends its number to a file, which is to have them all, once."""

    name = "counting"
    env_config_cls = CountingConfig
    config: CountingConfig

    async def setup(self) -> None:
        self.items = itertools.count()
        if self.opened is not None:
            self.opened.set()

    async def get_next_item(self) -> int:
        return next(self.items)

    def format_prompt(self, item: int) -> str:
        return f"count ({item})"

    async def compute_reward(self, item: int, result: Episode, ctx: ToolContext) -> float:
        wanted = [str(turn) for turn in range(self.config.turns - 1)]
        return float((await ctx.terminal("cat turns"))["output"].split() == wanted)

    opened: anyio.Event | None = None


def count(prompt: str, turns: int) -> str:
    """A model that appends a line a turn, and then answers."""
    turn = prompt.count("<|im_start|>tool")
    return call("terminal", command=f"echo {turn} >> turns") if turn < turns - 1 else "done"


def main() -> None:
    tokenizer, turns = sys.argv[1:]
    with serving(PolicyServer(load(Path(tokenizer)), partial(count, turns=int(turns)))) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
