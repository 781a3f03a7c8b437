"""Tasks to write a text file, for testing that model, slots and trainer work together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from hermes_agent import Episode, Verdict
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.context import ToolContext
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.spec import SandboxSpec


class FileTask(NamedTuple):
    """A prompt, the path of the file to write and its expected content."""

    prompt: str
    path: str
    content: str


TRAIN = (
    FileTask("Make a file `greeting.txt` with the text: Hello from the slot", "greeting.txt", "Hello from the slot"),
    FileTask("Write the numbers from 1 to 5 into `count.txt`, one in each line.", "count.txt", "1\n2\n3\n4\n5"),
    FileTask("Write the result of 6 * 7 into `answer.txt`, and nothing else.", "answer.txt", "42"),
)
EVAL = (FileTask("Make a file `report/done.txt` with the text: finished", "report/done.txt", "finished"),)


class TerminalTestEnv(SandboxAgentEnv[FileTask]):
    """Files with given texts. The reward is 1.0 for the right text, 0.5 for another text and 0.0 without the file."""

    name = "terminal_test"
    env_config_cls = SandboxEnvConfig

    async def setup(self) -> None:
        """Start with the first task."""
        self._tasks: Iterator[FileTask] = itertools.cycle(TRAIN)

    async def get_next_item(self) -> FileTask:
        """Return the next task, endlessly."""
        return next(self._tasks)

    def format_prompt(self, item: FileTask) -> str:
        """Return the prompt of the task."""
        return item.prompt

    def sandbox_spec(self, item: FileTask) -> SandboxSpec:
        """Return a spec that keeps only the file for the check."""
        return SandboxSpec(keep=[item.path])

    async def compute_reward(self, item: FileTask, result: Episode, ctx: ToolContext) -> Verdict:
        """Compare the content of the file, ignoring surrounding whitespace."""
        text = await ctx.read_text(item.path)
        if text is None:
            return Verdict(0.0, solved=False, output=f"there is no {item.path}")
        solved = text.strip() == item.content
        return Verdict(1.0 if solved else 0.5, solved=solved, output=text[:200])

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Evaluate the task that is not used for training."""
        await self.evaluate_items(EVAL, key=lambda item: item.path)


ENV = TerminalTestEnv

if __name__ == "__main__":
    ENV.cli()
