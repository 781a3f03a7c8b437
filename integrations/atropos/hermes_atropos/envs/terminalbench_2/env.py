"""TerminalBench 2: an evaluation on tasks with their own images and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.to_thread
from pydantic import Field

from hermes_agent import Episode, Verdict
from hermes_atropos.cache import default_cache_dir
from hermes_atropos.context import ExecTool, ToolContext
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.envs.terminalbench_2.scoring import find_shell, score_task
from hermes_atropos.envs.terminalbench_2.tasks import TerminalBenchTask, environment_directory, find_workdir, load_tasks
from hermes_atropos.spec import SandboxSpec
from hermes_atropos.task_images import WITHOUT_IMAGES, RunnableTask, TaskImagesConfig, TaskSlot, check_own_ports
from hermes_exec import ConfigError


class TerminalBench2Config(TaskImagesConfig):
    """The options of the environment."""

    dataset_name: str | None = Field(
        default="NousResearch/terminal-bench-2", description="name of the dataset; `shipped`: the small set"
    )
    test_timeout: float = Field(default=180.0, gt=0, description="time limit of a task's tests, in seconds")
    task_timeout: float = Field(default=1800.0, gt=0, description="time limit of an episode, in seconds")
    task_filter: str = Field(default="", description="names of the tasks to run, separated by commas; empty: all")
    skip_tasks: str = Field(default="", description="names of tasks to leave out, separated by commas")
    force_build: bool = Field(default=False, description="build the image even if the task names one")


class TerminalBench2Env(SandboxAgentEnv[RunnableTask[TerminalBenchTask]]):
    """The tasks of TerminalBench 2. They are for evaluation only."""

    name = "terminalbench_2"
    env_config_cls = TerminalBench2Config
    config: TerminalBench2Config

    async def setup(self) -> None:
        """Load the selected tasks."""
        config = self.config
        name = config.dataset_name or "shipped"
        tasks = await anyio.to_thread.run_sync(load_tasks, name, config.dataset_split)
        self._tasks = select_tasks(tasks, config.task_filter, config.skip_tasks)
        if config.backend_type in WITHOUT_IMAGES:
            raise ConfigError(
                f"{self.name} needs images, which the backend {config.backend_type!r} does not support: use docker"
            )
        check_own_ports(config)
        self._images = config.task_images()

    async def get_next_item(self) -> None:
        """Raise ConfigError, because this is an evaluation."""
        raise ConfigError(f"{self.name} is for evaluation only: use `evaluate`")

    def format_prompt(self, item: RunnableTask[TerminalBenchTask]) -> str:
        """Return the task's instruction."""
        return item.task.instruction

    def sandbox_spec(self, item: RunnableTask[TerminalBenchTask]) -> SandboxSpec:
        """Return the task's image and the deadline of the episode. The work is scored in the same slot, by the state of
        the machine.
        """
        loop = {"deadline_s": self._limit("task_timeout", item.task.task_timeout_s)}
        return SandboxSpec(image=item.request.image, workdir=item.request.workdir, score_in="slot", loop=loop)

    async def setup_trajectory_workspace(
        self, item: RunnableTask[TerminalBenchTask], *, trajectory_id: str, exec_tool: ExecTool
    ) -> dict[str, Any]:
        """Record the shell of the image."""
        return {"shell": await find_shell(exec_tool)}

    async def compute_reward(self, item: RunnableTask[TerminalBenchTask], result: Episode, ctx: ToolContext) -> Verdict:
        """Return the result of the task's own tests."""
        limit_s = self._limit("test_timeout", item.task.test_timeout_s)
        return await score_task(ctx.slot, item.task, ctx.meta["shell"], limit_s)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Evaluate every task once and report the share of solved tasks by category."""
        items = await self._images.resolve_tasks(self.pool, self._tasks, self._find_image)
        await self.evaluate_items(items, key=lambda item: item.task.name, category=lambda item: item.task.category)

    def _limit(self, setting: str, own: float | None) -> float:
        """Return the task's own limit in seconds, unless it has none or the setting was given."""
        value: float = getattr(self.config, setting)
        return value if own is None or setting in self.config.model_fields_set else own

    async def _find_image(self, task: TerminalBenchTask) -> TaskSlot:
        if task.image and not (self.config.force_build and task.environment_tar):
            return TaskSlot(
                task.image,
                "image" if self.config.backend_type == "docker" else await anyio.to_thread.run_sync(find_workdir, task),
            )
        directory = await anyio.to_thread.run_sync(environment_directory, task, default_cache_dir("terminalbench"))
        return await self._images.resolve(directory)


ENV = TerminalBench2Env


def select_tasks(tasks: Sequence[TerminalBenchTask], only: str, skip: str) -> list[TerminalBenchTask]:
    """Return the tasks named in `only` (separated by commas; empty: all) but not in `skip`.

    Raises:
        ConfigError: If a name is unknown, or if no task is left.
    """
    wanted, left_out = ({name.strip() for name in names.split(",") if name.strip()} for names in (only, skip))
    unknown = wanted - {task.name for task in tasks}
    if unknown:
        raise ConfigError(f"task_filter: unknown task {', '.join(sorted(unknown))}")
    selection = [task for task in tasks if (not wanted or task.name in wanted) and task.name not in left_out]
    if not selection:
        raise ConfigError("task_filter and skip_tasks leave no task")
    return selection
