"""Which calls of a turn run at the same time: a setting of a batch run, kept for its resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_agent.turn import ParallelCalls
from hermes_batch import BatchConfig, Task
from hermes_batch.settings import read_config, write_settings
from hermes_batch.units import Unit
from hermes_exec import ConfigError

UNIT = Unit(Task(index=0, place="line 1", prompt="go"))


def config(tmp_path: Path, **more: Any) -> BatchConfig:
    return BatchConfig(dataset=tmp_path / "prompts.jsonl", out=tmp_path, model="m", **more)


@pytest.mark.parametrize("given", ["safe", "all", 1, 7])
def test_parallel_calls_reaches_the_loop_and_is_recorded(given: ParallelCalls, tmp_path: Path) -> None:
    write_settings(config(tmp_path, parallel_calls=given), {})
    resumed = read_config(tmp_path)
    assert resumed.make_rollout(UNIT).loop["parallel_calls"] == given


def test_parallel_calls_default_is_safe(tmp_path: Path) -> None:
    assert config(tmp_path).make_rollout(UNIT).loop["parallel_calls"] == "safe"


@pytest.mark.parametrize("given", [0, True, "some", 2.5, None])
def test_parallel_calls_refuses_other_values(given: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="parallel_calls is 'safe', 'all' or a number from 1"):
        BatchConfig.of({"dataset": tmp_path / "p", "out": tmp_path, "model": "m", "parallel_calls": given})
