"""Records of batch runs whose rollouts are programs, also of a program that sends what no harness would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import CommandCheck, Completion, Message, Rollout, Scoring
from hermes_agent.models.scripted import ScriptedModel, call
from hermes_batch import run_rollouts
from hermes_exec import SandboxPool

pytestmark = pytest.mark.anyio
HARNESS = Path(__file__).with_name("harness.py")
RIGHT = Scoring(check=CommandCheck("grep -q right answer"))


def answer(messages: Sequence[Message]) -> Completion:
    command = call("sh", {"command": "echo right > answer"})
    return Completion("Done.") if messages[-1]["role"] == "tool" else Completion("", (command,))


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trajectories.jsonl").read_text("utf-8").splitlines()]


async def test_program_has_the_same_records(tmp_path: Path) -> None:
    rollout = Rollout(
        messages="go", files={"harness.py": HARNESS}, program=["python3", "harness.py", "{task}"], scoring=RIGHT
    )
    async with SandboxPool("local") as pool:
        result = await run_rollouts([("one", rollout)], pool, ScriptedModel(repeat(answer)), tmp_path, samples=2)
    assert (result.solved, result.total) == (2, 2)
    for record in records(tmp_path):
        assert (record["solved"], record["turns"], record["exportable"]) == ("solved", 2, True), record[
            "export_problem"
        ]
        assert [turn["from"] for turn in record["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]


HOSTILE = r"""
import sys
from harness import *
deep = json.loads('{"a":' * 500 + "1" + "}" * 500)
SCHEMAS = {"x": "\ud800"}, {"x": float("nan")}, {"x": 1e999}, deep, {"\ud800": 1}
for name, schema in (("\ud800", {}), ("\0", {}), *(("n", schema) for schema in SCHEMAS)):
    TOOLS[:] = [{"type": "function", "function": {"name": name, "description": "\ud800", "parameters": schema}}]
    try: ask([{"role": "user", "content": "\ud800\0" + sys.argv[1]}, {"role": "assistant", "content": "\udfff"}] * 2)
    except OSError as error: print(error.read())
"""


async def test_program_that_sends_strange_texts_has_a_record(tmp_path: Path) -> None:
    """Lone surrogates, NaN and deep schemas reach neither the record nor the end of the run."""
    files: dict[str, str | Path] = {"harness.py": HARNESS, "hostile.py": HOSTILE}
    rollout = Rollout(messages="go", files=files, program=["python3", "hostile.py", "{task}"])
    async with SandboxPool("local") as pool:
        result = await run_rollouts([("one", rollout)], pool, ScriptedModel(repeat("Done.")), tmp_path)
    assert result.total == 1
    (record,) = records(tmp_path)
    assert record["finish"] == "answered", record["errors"]
    assert "NaN is no number" in record.pop("program_output")
    text = json.dumps(record, ensure_ascii=False)
    assert "\\ud8" not in text.lower()
    assert "NaN" not in text
