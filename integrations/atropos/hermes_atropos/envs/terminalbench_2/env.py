"""TerminalBench 2: an evaluation on tasks in images of their own, with the tests that each brings."""

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
from hermes_atropos.task_images import WITHOUT_IMAGES, RunnableTask, SlotRequest, TaskImagesConfig, check_own_ports
from hermes_exec import ConfigError


class TerminalBench2Config(TaskImagesConfig):
    """The options of the environment."""

    dataset_name: str | None = Field(default="NousResearch/terminal-bench-2", description="`shipped`: the small set")
    test_timeout: float = Field(default=180.0, gt=0, description="longest time of a task's tests, in seconds")
    task_timeout: float = Field(default=1800.0, gt=0, description="longest time of an episode, in seconds")
    task_filter: str = Field(default="", description="names of tasks, separated by commas; empty: all")
    skip_tasks: str = Field(default="", description="names of tasks that are left out, separated by commas")
    force_build: bool = Field(default=False, description="build the image also where the task names one")


class TerminalBench2Env(SandboxAgentEnv[RunnableTask[TerminalBenchTask]]):
    """Tasks of TerminalBench 2; there is nothing to train on."""

    name = "terminalbench_2"
    env_config_cls = TerminalBench2Config
    config: TerminalBench2Config

    async def setup(self) -> None:
        """Load the tasks that were asked for."""
        config = self.config
        name = config.dataset_name or "shipped"
        tasks = await anyio.to_thread.run_sync(load_tasks, name, config.dataset_split)
        self._tasks = select_tasks(tasks, config.task_filter, config.skip_tasks)
        if config.backend_type in WITHOUT_IMAGES:
            raise ConfigError(
                f"{self.name} needs images, which the backend {config.backend_type!r} does not have: use docker"
            )
        check_own_ports(config)
        self._images = config.task_images()

    async def get_next_item(self) -> None:
        """Raises ConfigError: this is an evaluation."""
        raise ConfigError(f"{self.name} is an evaluation: use `evaluate`")

    def format_prompt(self, item: RunnableTask[TerminalBenchTask]) -> str:
        """The task's instruction."""
        return item.task.instruction

    def sandbox_spec(self, item: RunnableTask[TerminalBenchTask]) -> SandboxSpec:
        """The task's image, and a deadline that ends the episode; what counts is the state of the machine."""
        loop = {"deadline_s": self.config.task_timeout}
        return SandboxSpec(image=item.request.image, workdir=item.request.workdir, score_in="slot", loop=loop)

    async def setup_trajectory_workspace(
        self, item: RunnableTask[TerminalBenchTask], *, trajectory_id: str, exec_tool: ExecTool
    ) -> dict[str, Any]:
        """Note which shell the image has."""
        return {"shell": await find_shell(exec_tool)}

    async def compute_reward(self, item: RunnableTask[TerminalBenchTask], result: Episode, ctx: ToolContext) -> Verdict:
        """What the task's own tests say."""
        return await score_task(ctx.slot, item.task, ctx.meta["shell"], self.config.test_timeout)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Every task once; the share that is solved, by category."""
        items = await self._images.resolve_tasks(self.pool, self._tasks, self._find_image)
        await self.evaluate_items(items, key=lambda item: item.task.name, category=lambda item: item.task.category)

    async def _find_image(self, task: TerminalBenchTask) -> SlotRequest:
        if task.image and not (self.config.force_build and task.environment_tar):
            return SlotRequest(
                task.image,
                "image" if self.config.backend_type == "docker" else await anyio.to_thread.run_sync(find_workdir, task),
            )
        directory = await anyio.to_thread.run_sync(environment_directory, task, default_cache_dir("terminalbench"))
        return await self._images.resolve(directory)


ENV = TerminalBench2Env


def select_tasks(tasks: Sequence[TerminalBenchTask], only: str, skip: str) -> list[TerminalBenchTask]:
    """The tasks of these names (separated by commas; empty: all) without others. Raises ConfigError for a name that no
    task has.
    """
    wanted, left_out = ({name.strip() for name in names.split(",") if name.strip()} for names in (only, skip))
    unknown = wanted - {task.name for task in tasks}
    if unknown:
        raise ConfigError(f"task_filter: there is no task {', '.join(sorted(unknown))}")
    selection = [task for task in tasks if (not wanted or task.name in wanted) and task.name not in left_out]
    if not selection:
        raise ConfigError("task_filter and skip_tasks leave no task")
    return selection
