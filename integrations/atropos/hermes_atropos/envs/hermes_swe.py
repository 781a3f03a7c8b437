"""Functions to write, in the format of HumanEvalPack. The reward is 1.0 if the tests pass and 0.1 for a module that
fails them.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
from pydantic import Field

from hermes_agent import CheckFailed, Episode, Verdict
from hermes_atropos import datasets
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.context import ToolContext
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.spec import SandboxSpec

WORK, CHECK = "solution.py", ".check/check.py"
_INSTRUCTION = f"Complete this function. Write the whole Python module to `{WORK}` in the current directory.\n\n"
_CHECK = f"""import sys
def main(token, tests, names, run, say):
    for code in [compile(open({WORK!r}, "rb").read(), {WORK!r}, "exec"), compile(tests, "tests.py", "exec")]:
        run(code, names)
    say("\\n" + token)
main(sys.stdin.readline(), sys.stdin.read(), {{"__name__": "solution"}}, exec, sys.stdout.write)
"""


class HermesSweConfig(SandboxEnvConfig):
    """The options of the environment."""

    dataset_name: str | None = "bigcode/humanevalpack:python"
    dataset_split: str = "test"
    network: bool | None = Field(
        False, description="Whether slots have a network; off because the solutions are public"
    )
    test_timeout_s: float = 30.0


class HermesSweEnv(SandboxAgentEnv[dict[str, Any]]):
    """Functions to write."""

    name = "hermes_swe"
    env_config_cls = HermesSweConfig
    config: HermesSweConfig

    async def setup(self) -> None:
        """Load the functions."""
        name, split, fields = self.config.dataset_name, self.config.dataset_split, {"prompt": str, "test": str}
        rows = await anyio.to_thread.run_sync(datasets.load_items, name, self.name, split, fields)
        self._items: Iterator[dict[str, Any]] = itertools.cycle(rows)

    async def get_next_item(self) -> dict[str, Any]:
        """Return the next function."""
        return next(self._items)

    def format_prompt(self, item: dict[str, Any]) -> str:
        """Return the beginning of the function and the path of the module."""
        return _INSTRUCTION + f"```python\n{item['prompt']}\n```"

    def sandbox_spec(self, item: dict[str, Any]) -> SandboxSpec:
        """Return a spec that keeps only the module for the check."""
        return SandboxSpec(keep=[WORK], check_files={CHECK: _CHECK})

    async def compute_reward(self, item: dict[str, Any], result: Episode, ctx: ToolContext) -> Verdict:
        """Return 1.0 if the tests, which are not stored in the slot, ran to their end; 0.1 if there is a module; else
        0.0.
        """
        if not await ctx.slot.files.exists(WORK):
            return Verdict(0.0, solved=False, output=f"there is no {WORK}")
        token, limit_s = secrets.token_hex(16), self.config.test_timeout_s
        request = "\n".join([token, *(str(item.get(name) or "") for name in ("import", "test_setup", "test"))])
        done = await ctx.slot.run(["python3", "-I", CHECK], stdin=request, timeout_s=limit_s, merge_stderr=True)
        if done.exit_code == 127 and not (await ctx.slot.run("command -v python3")).ok:
            raise CheckFailed("the image has no python3")
        solved = done.ok and done.output.rstrip("\n").rpartition("\n")[2] == token
        return Verdict(1.0 if solved else 0.1, solved=solved, exit_code=done.exit_code, output=done.output[-2000:])


ENV = HermesSweEnv

if __name__ == "__main__":
    ENV.cli()
