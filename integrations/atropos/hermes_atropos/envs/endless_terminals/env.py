"""Endless Terminals: tasks to bring a machine into a given state, each in its own image, with a reward of 0 or 1."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import anyio.to_thread
from pydantic import Field

from hermes_agent import Episode, Verdict
from hermes_atropos.context import ExecTool, ToolContext
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.envs.endless_terminals.scoring import find_interpreter, score_final_state
from hermes_atropos.envs.endless_terminals.tasks import EndlessTask, load_tasks, split_tasks
from hermes_atropos.spec import SandboxSpec
from hermes_atropos.task_images import RunnableTask, TaskImagesConfig, TaskSlot, check_own_ports
from hermes_exec import ConfigError

logger = logging.getLogger(__name__)


class EndlessTerminalsConfig(TaskImagesConfig):
    """The options of the environment."""

    max_agent_turns: int = 32
    dataset_name: str | None = "obiwan96/endless-terminals"
    use_dataset: bool = Field(default=True, description="False: use tasks_base_dir, else the shipped tasks")
    tasks_base_dir: str = Field(default="", description="directory with task_* directories; replaces the dataset")
    test_timeout_s: float = Field(default=60.0, gt=0, description="time limit of a task's test in seconds")
    num_eval_tasks: int = Field(default=10, ge=0)
    eval_split_ratio: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = 0


class EndlessTerminalsEnv(SandboxAgentEnv[RunnableTask[EndlessTask]]):
    """The tasks of Endless Terminals."""

    name = "endless_terminals"
    env_config_cls = EndlessTerminalsConfig
    config: EndlessTerminalsConfig

    async def setup(self) -> None:
        """Load the tasks, leave out those that the backend cannot run, and split off the evaluation tasks."""
        config = self.config
        check_own_ports(config)
        dataset = config.dataset_name if config.use_dataset and not config.tasks_base_dir else None
        tasks = await anyio.to_thread.run_sync(load_tasks, dataset, config.dataset_split, config.tasks_base_dir)
        self._images = config.task_images()
        possible = await anyio.to_thread.run_sync(self._filter_possible, tasks)
        self._train, self._eval = split_tasks(possible, config.eval_split_ratio, config.split_seed)
        self._order = random.Random(config.split_seed)
        self._queue: list[EndlessTask] = []

    def _filter_possible(self, tasks: Sequence[EndlessTask]) -> list[EndlessTask]:
        refusals = {task.name: self._images.refusal(task.environment) for task in tasks}
        possible = [task for task in tasks if not refusals[task.name]]
        if not possible:
            raise ConfigError(f"none of the {len(tasks)} tasks can run: {next(iter(refusals.values()))}")
        if len(possible) < len(tasks):
            reason = next(refusal for refusal in refusals.values() if refusal)
            logger.warning("leaving out %d of %d tasks; the first: %s", len(tasks) - len(possible), len(tasks), reason)
        return possible

    async def get_next_item(self) -> RunnableTask[EndlessTask]:
        """Return the next task in a seeded order, which is shuffled again after each epoch. A task whose image cannot
        be built is left out from then on.

        Raises:
            ConfigError: If no task is left.
        """
        while self._train:
            if not self._queue:
                self._queue = list(self._train)
                self._order.shuffle(self._queue)
            task = self._queue.pop()
            runnable = await self._images.resolve_tasks(self.pool, [task], self._find_image)
            if runnable:
                return runnable[0]
            self._train.remove(task)
        raise ConfigError("no task is left whose image can be built: see the warnings above")

    async def _find_image(self, task: EndlessTask) -> TaskSlot:
        return await self._images.resolve(task.environment)

    def format_prompt(self, item: RunnableTask[EndlessTask]) -> str:
        """Return the task's instruction."""
        return item.task.instruction

    def sandbox_spec(self, item: RunnableTask[EndlessTask]) -> SandboxSpec:
        """Return the task's image. The work is scored in the same slot, by the state of the machine."""
        return SandboxSpec(image=item.request.image, workdir=item.request.workdir, score_in="slot")

    async def setup_trajectory_workspace(
        self, item: RunnableTask[EndlessTask], *, trajectory_id: str, exec_tool: ExecTool
    ) -> dict[str, Any]:
        """Record the Python of the image."""
        return {"interpreter": await find_interpreter(exec_tool)}

    async def compute_reward(self, item: RunnableTask[EndlessTask], result: Episode, ctx: ToolContext) -> Verdict:
        """Return 1.0 if all tests of the final state pass."""
        return await score_final_state(ctx.slot, item.task.test, ctx.meta["interpreter"], self.config.test_timeout_s)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Evaluate the held-out tasks."""
        items = await self._images.resolve_tasks(self.pool, self._eval[: self.config.num_eval_tasks], self._find_image)
        await self.evaluate_items(items, key=lambda item: item.task.name, category=lambda item: item.task.category)


ENV = EndlessTerminalsEnv
