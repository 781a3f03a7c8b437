"""Trajectories of `batch export --to atif` in harbor's own models and validator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator

from hermes_batch import export_records
from tests.unit.batch.exporting import HUGE, PNG, Row, make_row, write_run

pytestmark = pytest.mark.anyio
KINDS = ("plain", "short", "failed", "image", "huge", "endless", "broken", "cut")
USAGE = [
    {"prompt_tokens": 30, "completion_tokens": 4, "cached_tokens": 0, "cost": 0.5, "finish_reason": "stop"},
    {"prompt_tokens": 40, "completion_tokens": 2, "cached_tokens": 30, "reasoning_tokens": 1, "cost": 0.25},
]
TOKENS = [
    {"added": [1, 2], "ids": [3, 4], "logprobs": [-0.5, -0.25], "restarts": False},
    {"added": [5], "ids": [6], "logprobs": None, "restarts": False},
]


async def export(tmp_path: Path, kind: str, **fields: object) -> Trajectory:
    """Export one record, and return its trajectory, which the validator accepts with its images."""
    run = write_run(tmp_path / f"run-{kind}", [await make_row(kind, id=kind, **fields)])
    out = tmp_path / f"out-{kind}"
    assert export_records(run, to="atif", out=out).written == 1
    (path,) = out.glob("train/*/*.json")
    validator = TrajectoryValidator()
    assert validator.validate(path), validator.get_errors()
    return Trajectory.model_validate_json(path.read_text("utf-8"))


@pytest.mark.parametrize("kind", KINDS)
async def test_trajectory_of_each_kind_is_valid(kind: str, tmp_path: Path) -> None:
    trajectory = await export(tmp_path, kind)
    assert (trajectory.schema_version, trajectory.agent.name, trajectory.agent.model_name) == (
        "ATIF-v1.8",
        "hermes-exec",
        "m",
    )
    assert [step.source for step in trajectory.steps[:3]] == ["system", "user", "agent"]
    assert trajectory.agent.tool_definitions is not None
    assert (trajectory.extra or {})["reward"] == 1.0
    assert all(step.is_copied_context is None for step in trajectory.steps)


async def test_calls_and_results_share_a_step(tmp_path: Path) -> None:
    step = (await export(tmp_path, "plain")).steps[2]
    assert (step.message, step.reasoning_content) == ("I look.", "Look first.")
    assert step.tool_calls is not None
    assert step.observation is not None
    (call,), (result,) = step.tool_calls, step.observation.results
    assert (call.function_name, call.arguments) == ("do", {"x": 1.5, "y": [{"z": 1}]})
    assert result.source_call_id == call.tool_call_id
    assert "né 🦀" in str(result.content)
    assert (result.extra or {})["ok"] is True
    failed = (await export(tmp_path, "failed")).steps[2].observation
    assert failed is not None
    assert (failed.results[0].extra or {})["error_kind"] == "exit"


async def test_arguments_that_are_no_object_keep_their_text(tmp_path: Path) -> None:
    calls = (await export(tmp_path, "broken")).steps[2].tool_calls
    assert calls is not None
    assert (calls[0].arguments, calls[0].extra) == ({}, {"arguments_text": "{broken"})
    huge = (await export(tmp_path, "huge")).steps[2].tool_calls
    assert huge is not None
    assert huge[0].arguments["y"] == HUGE


async def test_images_are_files_beside_the_trajectory(tmp_path: Path) -> None:
    trajectory = await export(tmp_path, "image")
    assert trajectory.has_multimodal_content()
    (image,) = (tmp_path / "out-image").rglob("*.png")
    assert image.read_bytes() == PNG


async def test_metrics_have_tokens_ids_and_log_probabilities(tmp_path: Path) -> None:
    totals: Row = {"prompt_tokens": 70, "completion_tokens": 6, "cached_tokens": 30, "cost": 0.75}
    trajectory = await export(tmp_path, "plain", usage=json.dumps(USAGE), tokens=json.dumps(TOKENS), **totals)
    first, second = (step.metrics for step in trajectory.steps if step.source == "agent")
    assert first is not None
    assert second is not None
    assert (first.prompt_tokens, first.completion_tokens, first.cost_usd) == (30, 4, 0.5)
    assert (first.prompt_token_ids, first.completion_token_ids, first.logprobs) == ([1, 2], [3, 4], [-0.5, -0.25])
    assert (second.prompt_token_ids, second.completion_token_ids, second.logprobs) == ([1, 2, 3, 4, 5], [6], None)
    assert (second.cached_tokens, second.extra) == (30, {"reasoning_tokens": 1})
    final = trajectory.final_metrics
    assert final is not None
    assert (final.total_prompt_tokens, final.total_cost_usd, final.total_steps) == (70, 0.75, 4)


async def test_answers_of_the_prompt_are_copied_context(tmp_path: Path) -> None:
    shown = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    messages = [*shown, {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    trajectory = await export(tmp_path, "short", messages=json.dumps(messages))
    assert [step.is_copied_context for step in trajectory.steps] == [None, True, None, None]
