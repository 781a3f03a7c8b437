"""GSM8K with tools: word problems solved in a slot, with a reward of 1 for the right number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import anyio.to_thread
from pydantic import Field

from hermes_agent import Episode
from hermes_atropos import datasets
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.context import ToolContext
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.spec import SandboxSpec
from hermes_exec import ConfigError

_ANSWER = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}|####[ \t]*(\S[^\n]*)")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_INSTRUCTION = "Solve the problem; you may use the tools to calculate. End your answer with \\boxed{NUMBER}.\n\n"


class Gsm8kAgentConfig(SandboxEnvConfig):
    """The options of the environment."""

    dataset_name: str | None = "openai/gsm8k:main"
    network: bool | None = Field(False, description="Whether slots have a network; off because the answers are public")


class Gsm8kAgentEnv(SandboxAgentEnv[dict[str, Any]]):
    """The word problems of GSM8K."""

    name = "gsm8k_agent"
    env_config_cls = Gsm8kAgentConfig
    config: Gsm8kAgentConfig

    async def setup(self) -> None:
        """Load the problems."""
        name, split, fields = self.config.dataset_name, self.config.dataset_split, {"question": str, "answer": str}
        rows = await anyio.to_thread.run_sync(datasets.load_items, name, self.name, split, fields)
        for number, row in enumerate(rows, 1):
            if find_number(row["answer"]) is None:
                raise ConfigError(f"row {number} of {name!r}: the field 'answer' must end with `#### NUMBER`")
        self._items: Iterator[dict[str, Any]] = itertools.cycle(rows)

    async def get_next_item(self) -> dict[str, Any]:
        """Return the next problem in the order of the dataset."""
        return next(self._items)

    def format_prompt(self, item: dict[str, Any]) -> str:
        """Return the problem and the format of the answer."""
        return _INSTRUCTION + str(item["question"])

    def sandbox_spec(self, item: dict[str, Any]) -> SandboxSpec:
        """Return a spec that scores in the same slot, because nothing in it is checked."""
        return SandboxSpec(score_in="slot")

    async def compute_reward(self, item: dict[str, Any], result: Episode, ctx: ToolContext) -> float:
        """Return 1.0 if the last number in the model's final answer is right."""
        answer = find_number(result.answer or "")
        return float(answer is not None and answer == find_number(item["answer"]))


def find_number(text: str) -> Decimal | None:
    r"""Return the number in the last `\boxed{…}` or `#### …`, or None."""
    marked = _ANSWER.findall(text)
    numbers = _NUMBER.findall(marked[-1][0] or marked[-1][1]) if marked else []
    try:
        return Decimal(numbers[0].replace(",", "")) if len(numbers) == 1 else None
    except InvalidOperation:
        return None


ENV = Gsm8kAgentEnv

if __name__ == "__main__":
    ENV.cli()
