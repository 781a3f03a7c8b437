"""Runs to export: records of real episodes of a loop, with fields that a test sets."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermes_agent import AgentLoop, Completion, Message, RolloutResult, ScriptedModel, Verdict
from hermes_agent.messages import TokenUsage, ToolCall
from hermes_agent.models.scripted import call
from hermes_batch.index import encode_line
from hermes_batch.record import make_record
from hermes_batch.task import Task
from hermes_batch.units import Unit
from hermes_exec.cli.app import run as run_program
from hermes_exec.errors import ErrorCause
from hermes_exec.tools import ToolResult
from tests.unit.agent.toolboxes import FunctionTools, result

PNG = b"\x89PNG\r\n\x1a\n image"
HUGE = 123456789012345678901234567890
Row = dict[str, Any]


async def answer_call(arguments: dict[str, Any]) -> ToolResult:
    """Answer a call: `show` with an image, `fail` with an error, others with text."""
    if arguments.get("x") == "show":
        return replace(result('{"shown": true}'), images=(PNG,), shows_images=True)
    if arguments.get("x") == "fail":
        return result('{"error": "no"}', ok=False, error_kind="exit")
    return result(json.dumps({"output": "né 🦀", "x": arguments.get("x")}, ensure_ascii=False))


def answer(text: str, *calls: ToolCall, reasoning: str | None = None) -> Completion:
    return Completion(text, calls, reasoning, usage=TokenUsage(100, 20, 1, 0.25))


STEPS: dict[str, list[Completion]] = {
    "plain": [answer("I look.", call("do", {"x": 1.5, "y": [{"z": 1}]}), reasoning="Look first."), answer("Done.")],
    "short": [answer("Done at once.", reasoning="Easy.")],
    "failed": [answer("", call("do", {"x": "fail"})), answer("It failed.")],
    "image": [answer("", call("do", {"x": "show"})), answer("I see it.")],
    "huge": [answer("", call("do", {"x": 1, "y": HUGE})), answer("Done.")],
    "endless": [answer("", ToolCall("c1", "do", '{"x": 1e999}')), answer("Half of a pair: \ud83d.")],
    "broken": [answer("", ToolCall("c1", "", "{broken", "not a call")), answer("Sorry.")],
    "cut": [answer("", call("do", {"x": 1})), answer("", call("do", {"x": 2}))],
}
"""The model's answers in an episode of each kind."""


async def make_row(kind: str = "plain", /, **fields: Any) -> tuple[Row, dict[str, bytes]]:
    """Return the record of an episode and its images, with these fields instead of its own."""
    prompt = fields.pop("prompt", "go")
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    loop = AgentLoop(ScriptedModel(STEPS[kind]), FunctionTools(answer_call), max_turns=2, final_answer=False)
    episode = await loop.run(messages)
    solved = fields.get("solved", "solved") == "solved"
    verdict = Verdict(float(solved), solved=solved, exit_code=int(not solved), output="")
    rollout = RolloutResult(episode, verdict, cause=ErrorCause.POLICY, isolation="uid", sandbox="s", seconds=1.5)
    index = fields.pop("prompt_index", 0)
    group = fields.pop("group", "a" * 32)
    metadata = {"source": "made"}
    task = Task(index=index, place="1", prompt=prompt, id=fields.pop("id", "task"), group=group, metadata=metadata)
    unit = Unit(task, fields.pop("sample", 0))
    made = make_record(unit, messages, rollout, model="m", toolsets=["do"], backend="local", image="")
    return {**made.record, **fields}, made.images


def write_run(directory: Path, rows: Iterable[tuple[Row, dict[str, bytes]] | Row | bytes]) -> Path:
    """Write the directory of a run with these records."""
    directory.mkdir()
    with (directory / "trajectories.jsonl").open("wb") as file:
        for row in rows:
            if isinstance(row, bytes):
                file.write(row)
                continue
            record, images = row if isinstance(row, tuple) else (row, {})
            file.write(encode_line(record))
            for name, image in images.items():
                (directory / name).parent.mkdir(exist_ok=True)
                (directory / name).write_bytes(image)
    return directory


class Ended(NamedTuple):
    """The end of a command: its exit code, and its output."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands of `hermes-exec batch` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture, self._monkeypatch = capture, monkeypatch

    def __call__(self, *arguments: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["hermes-exec", "batch", *map(str, arguments)])
        self._capture.readouterr()
        handler = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as ended:
                run_program()
        finally:
            signal.signal(signal.SIGINT, handler)
        out, err = self._capture.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else int(code is not None), out, err)


def read_lines(path: Path) -> list[Row]:
    """Return the JSON values of a file of lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
