"""The environment: fix a bug in a real package. The package's own tests score the work in a clean slot."""

from __future__ import annotations

import logging
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
from pydantic import Field

from hermes_agent import Episode, Verdict
from hermes_atropos.cache import default_cache_dir
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.context import ExecTool, ToolContext
from hermes_atropos.datasets import SHIPPED, data_directory, load_dataset_rows
from hermes_atropos.env import SandboxAgentEnv
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, InstanceUnusable, read_instance
from hermes_atropos.envs.swe_smith_oracle.workspace import (
    REPO,
    PreparationSettings,
    PreparedInstance,
    Workspaces,
    judge,
    problem_text,
)
from hermes_atropos.spec import SandboxSpec
from hermes_exec.errors import ConfigError

logger = logging.getLogger(__name__)
_INTRODUCTION = """\
The repository is in the directory `{repo}`, where your terminal starts. Its package is installed there, so that \
changes take effect at once; run tests with `../venv/bin/python -m pytest`.

"""


class SweSmithOracleConfig(SandboxEnvConfig):
    """The settings of the environment. `dataset_name` is `shipped`, a file or directory, or the name of a dataset on
    Hugging Face.
    """

    dataset_name: str | None = Field(SHIPPED, description="shipped, a .jsonl/.json/.parquet file, or a dataset's name")
    network: bool | None = Field(
        False, description="Whether slots have a network; off because the fixed package is public"
    )
    max_items: int = Field(0, ge=0, description="maximum number of instances; 0: all")
    shuffle: bool = Field(True, description="shuffle the instances in each epoch")
    seed: int = Field(0, description="seed of the order")
    python_only: bool = Field(True, description="leave out instances whose tests are not Python files")
    score_include_fail_to_pass: bool = Field(True, description="require FAIL_TO_PASS in addition to PASS_TO_PASS")
    prompt_mode: Literal["problem_statement", "problem_statement+text"] = Field(
        "problem_statement", description="whether the prompt includes the dataset's text"
    )
    repo_base_url: str = Field("https://github.com", description="base URL of the repositories")
    repo_cache_dir: str = Field("", description="directory for clones, sdists and wheels; empty: the user's cache")
    wheels: Literal["offline", "online"] = Field(
        "offline", description="offline: this host downloads the wheels, and slots install them without a network"
    )
    python: str = Field("python3", description="Python in the slots")
    test_requirements: str = Field("pytest>=8,<10", description="requirements of the tests, separated by semicolons")
    test_arguments: str = Field("", description="more pytest arguments, in shell syntax")
    install_timeout_s: float = Field(
        600.0, gt=0, description="time limit for installing a package in a slot, in seconds"
    )
    test_timeout_s: float = Field(600.0, gt=0, description="time limit for all tests of a rollout, in seconds")

    def settings(self) -> PreparationSettings:
        """Return the settings for preparing and testing instances."""
        return PreparationSettings(
            cache=Path(self.repo_cache_dir).expanduser()
            if self.repo_cache_dir
            else default_cache_dir("swe_smith_oracle"),
            base_url=self.repo_base_url,
            wheels=self.wheels,
            python=self.python,
            test_requirements=tuple(part.strip() for part in self.test_requirements.split(";") if part.strip()),
            test_arguments=tuple(shlex.split(self.test_arguments)),
            install_timeout_s=self.install_timeout_s,
            test_timeout_s=self.test_timeout_s,
        )


class SweSmithOracleEnv(SandboxAgentEnv[PreparedInstance]):
    """Fix a bug in a repository. The reward is 1.0 if every test of the instance passes in a fresh copy of the
    repository with the model's source files, else 0.0. It is also 0.0 if the model called no tool.
    """

    name = "swe_smith_oracle"
    env_config_cls = SweSmithOracleConfig
    config: SweSmithOracleConfig

    async def setup(self) -> None:
        """Read the dataset.

        Raises:
            ConfigError: If a row is wrong, or if no instance is left.
        """
        config = self.config
        if config.wheels == "online" and not config.slots_network:
            raise ConfigError(
                "wheels online needs a network in the slots, which lets a model download the fixed package: set "
                "--env.wheels offline, or --env.network true"
            )
        name = (
            str(data_directory(self.name)) if config.dataset_name in (None, "", SHIPPED) else str(config.dataset_name)
        )
        rows = await anyio.to_thread.run_sync(load_dataset_rows, name, config.dataset_split or "train")
        self.instances = choose_instances([read_instance(row, number) for number, row in enumerate(rows, 1)], config)
        self._order = iterate_instances(self.instances, config)
        self._workspaces = Workspaces(self.pool, config.settings(), image=config.image)
        self._unusable: dict[str, str] = {}

    async def get_next_item(self) -> PreparedInstance:
        """Return the next instance, prepared.

        Raises:
            InstanceUnusable: If no instance can be used here.
        """
        while True:
            instance = next(self._order)
            if instance.instance_id in self._unusable:
                continue
            try:
                if not select_tests(instance, self.config):
                    raise InstanceUnusable("it requires no test")
                return await self._workspaces.prepare(instance)
            except InstanceUnusable as error:
                self._unusable[instance.instance_id] = str(error)
                logger.warning("leaving out instance %s: %s", instance.instance_id, error)
                if len(self._unusable) == len(self.instances):
                    raise InstanceUnusable(f"no instance can be used here; the last error: {error}") from error

    def format_prompt(self, item: PreparedInstance) -> str:
        """Return the problem statement after an introduction to the workspace."""
        return _INTRODUCTION.format(repo=REPO) + problem_text(item.instance, self.config.prompt_mode)

    def sandbox_spec(self, item: PreparedInstance) -> SandboxSpec:
        """Return the repository with the bug. Only the model's source files are scored."""
        return SandboxSpec(files=item.files, cwd=REPO, keep=item.keep, check_files=item.check_files)

    async def setup_trajectory_workspace(
        self, item: PreparedInstance, *, trajectory_id: str, exec_tool: ExecTool
    ) -> dict[str, Any]:
        """Complete the virtual environment around its packages."""
        done = await exec_tool("terminal", {"command": item.setup_command, "timeout": 60})
        if not done.success:
            raise OSError(f"{item.setup_command}: {done.error or done.output}")
        return {"instance_id": item.instance.instance_id}

    async def compute_reward(self, item: PreparedInstance, result: Episode, ctx: ToolContext) -> Verdict:
        """Return 1.0 if all required tests pass.

        Raises:
            CheckFailed: If the verifier itself does not work in the slot.
        """
        if all(call.state == "not_begun" for call in result.tool_calls):
            return Verdict(0.0, solved=False, output="no tool was called")
        return await judge(ctx.slot, item, select_tests(item.instance, self.config))


def select_tests(instance: Instance, config: SweSmithOracleConfig) -> tuple[str, ...]:
    """Return the tests that must pass."""
    return instance.tests if config.score_include_fail_to_pass else instance.pass_to_pass


def choose_instances(instances: list[Instance], config: SweSmithOracleConfig) -> list[Instance]:
    """Return the instances that the settings select, in the order of the dataset."""
    if config.python_only:
        instances = [
            instance for instance in instances if all(t.partition("::")[0].endswith(".py") for t in instance.tests)
        ]
    if config.shuffle and config.max_items:
        random.Random(config.seed).shuffle(instances)
    chosen = instances[: config.max_items or None]
    if not chosen:
        raise ConfigError("the dataset has no instance whose tests are Python files (python_only)")
    return chosen


def iterate_instances(instances: list[Instance], config: SweSmithOracleConfig) -> Iterator[Instance]:
    """Yield instances endlessly, shuffled again in each epoch if the settings ask for it."""
    chance = random.Random(config.seed)
    while True:
        epoch = list(instances)
        if config.shuffle:
            chance.shuffle(epoch)
        yield from epoch


ENV = SweSmithOracleEnv
