"""TBLite: TerminalBench 2 with another dataset of 100 easier tasks."""

from __future__ import annotations

from hermes_atropos.envs.terminalbench_2 import TerminalBench2Config, TerminalBench2Env


class TBLiteConfig(TerminalBench2Config):
    """The options of the environment."""

    dataset_name: str | None = "NousResearch/openthoughts-tblite"
    task_timeout: float = 1200.0


class TBLiteEnv(TerminalBench2Env):
    """The tasks of TBLite."""

    name = "tblite"
    env_config_cls = TBLiteConfig


ENV = TBLiteEnv

if __name__ == "__main__":
    ENV.cli()
