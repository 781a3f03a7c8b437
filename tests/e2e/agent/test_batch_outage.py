"""Batch runs whose endpoint goes away for longer than a request waits for it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from hermes_agent import Completion, EndpointAway, Message
from hermes_agent.models.scripted import call
from hermes_batch import BatchConfig, BatchResult, RunStatus, read_records, resume_batch, run_batch
from tests.e2e.agent.flaky_endpoint import Faults, flaky_endpoint
from tests.e2e.agent.test_commands import command
from tests.unit.agent.endpoint import Answer, endpoint, ok, refusal

pytestmark = pytest.mark.anyio
PROMPTS = 24
NOWHERE = "http://127.0.0.1:9/v1"


def config(tmp_path: Path, url: str, **more: Any) -> BatchConfig:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"episode {n}"}) + "\n" for n in range(PROMPTS)))
    return BatchConfig(
        **{"dataset": prompts, "out": tmp_path / "out", "model": "m", "base_url": url, "wait_outage_s": 0.5, **more}
    )


def check_all_answered(result: BatchResult) -> None:
    records = list(read_records(result.out))
    assert sorted(record["prompt_index"] for record in records) == list(range(PROMPTS))
    assert {(record["finish"], record["attempts"]) for record in records} == {("answered", 1)}
    assert (result.complete, result.unscored, result.stopped) == (True, 0, None)


@pytest.mark.parametrize("away_as", ["closed", "503"])
async def test_long_outage_is_waited_out(tmp_path: Path, away_as: Literal["closed", "503"]) -> None:
    seen: list[RunStatus] = []
    with flaky_endpoint(Faults(away_after=20, away_s=5, away_as=away_as)) as server:
        result = await run_batch(config(tmp_path, server.base_url), on_status=seen.append)
        log = server.log
    check_all_answered(result)
    assert any(status.endpoint is not None and (status.endpoint.away_s or 0) > 2 for status in seen)
    # A prompt that was under way when the endpoint left is begun anew.
    assert 3 * PROMPTS <= log.good <= 3 * PROMPTS + 2 * 4
    assert log.requests - log.good < 30


async def test_long_outage_stops_the_run_with_the_rest_undone(tmp_path: Path) -> None:
    with flaky_endpoint(Faults(away_after=20, away_s=5)) as server:
        stopped = await run_batch(config(tmp_path, server.base_url, on_outage="stop"))
        records = list(read_records(stopped.out))
        assert 0 < len(records) < PROMPTS
        assert {record["finish"] for record in records} == {"answered"}
        assert stopped.stopped is not None
        assert "completed no request" in stopped.stopped
        result = await resume_batch(stopped.out, wait_outage_s=60)
    check_all_answered(result)


async def test_outage_before_any_answer_ends_the_run(tmp_path: Path) -> None:
    result = await run_batch(config(tmp_path, NOWHERE))
    assert (result.records, result.complete) == (0, False)
    assert result.stopped is not None
    assert re.search(
        rf"^{NOWHERE} .*no connection.*; it has answered no request .*: check the base URL$", result.stopped
    )


class LeavingModel:
    """Answers all but the prompt "away" until that was asked three times. Another answer ends the outage."""

    model = "leaving"

    def __init__(self) -> None:
        self.others = 0
        self.both, self.thrice = anyio.Event(), anyio.Event()
        self.asked = 0

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        prompt, first = messages[0]["content"], len(messages) == 1
        if prompt == "away":
            await self.both.wait()
            self.asked += 1
            if self.asked == 3:
                self.thrice.set()
            if self.asked <= 3:
                raise EndpointAway("gave nothing")
        elif first:
            self.others += 1
            if self.others == 2:
                self.both.set()
            if prompt == "long":
                return Completion(None, (call("terminal", {"command": "true"}),))
        else:
            await self.thrice.wait()
            await anyio.sleep(0.5)  # the worker that asks is in its third pause
        return Completion("done")


async def test_end_of_an_outage_leaves_the_last_prompt_to_one_worker(tmp_path: Path) -> None:
    """A worker that has ended its own prompt meanwhile waits before the one that asks."""
    entries = [{"prompt": "long"}, {"prompt": "short", "check": "true"}, {"prompt": "away"}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    model = LeavingModel()
    result = await run_batch(BatchConfig(dataset=prompts, out=tmp_path / "out", model=model, workers=3))
    assert (result.complete, result.unscored, model.asked) == (True, 0, 4)


@pytest.mark.parametrize("failing", [range(8), range(0, PROMPTS, 3), range(PROMPTS - 6, PROMPTS)])
@pytest.mark.parametrize("workers", [1, 4])
async def test_prompts_that_always_fail_end_and_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: range, workers: int
) -> None:
    for name in ("hermes_batch.engine._FIRST_PAUSE_S", "hermes_batch.engine._LONGEST_PAUSE_S"):
        monkeypatch.setattr(name, 0.05)
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.01)

    def reply(request: dict[str, Any]) -> Answer:
        prompt = next(each["content"] for each in request["messages"] if each["role"] == "user")
        return refusal(500, "cannot parse") if int(prompt.split()[-1]) in failing else ok({"content": "done"})

    # The very first answer keeps the run from being one that never had an endpoint.
    with endpoint(ok({"content": "done"}), reply=reply) as server, anyio.fail_after(60):
        result = await run_batch(config(tmp_path, server.base_url, workers=workers))
    records = {record["prompt_index"]: record for record in read_records(result.out)}
    failed = {index for index, record in records.items() if record["finish"] == "model_error"}
    assert (result.complete, result.stopped, len(records)) == (True, None, PROMPTS)
    assert len(failed) >= len(failing) - 1
    assert failed <= set(failing)
    assert {records[index]["cause"] for index in failed} == {"provider"}
    assert all(records[index]["attempts"] <= 3 for index in failed)


async def test_cancellation_ends_the_wait_at_once(tmp_path: Path) -> None:
    cancelled_at = 0.0
    with flaky_endpoint(Faults(away_after=20, away_s=600)) as server, anyio.fail_after(60):
        with anyio.CancelScope() as scope:

            def watch(status: RunStatus) -> None:
                nonlocal cancelled_at
                if status.endpoint is not None and (status.endpoint.away_s or 0) > 4:
                    cancelled_at = time.monotonic()
                    scope.cancel()

            await run_batch(config(tmp_path, server.base_url), on_status=watch)
    assert scope.cancelled_caught
    assert time.monotonic() - cancelled_at < 3
    assert {record["finish"] for record in read_records(tmp_path / "out")} == {"answered"}


def test_command_without_an_endpoint_ends_with_infra(tmp_path: Path) -> None:
    run = config(tmp_path, NOWHERE)
    arguments = ("--model", "m", "--base-url", NOWHERE, "--wait-outage", "1")
    done = subprocess.run(
        command("batch", "run", str(run.dataset), "--out", str(run.out), *arguments),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert f"the run was stopped: {NOWHERE} completed no request for 1 s" in done.stderr
    assert f"hermes-exec batch resume {run.out}" in done.stderr
    assert f"{PROMPTS} of {PROMPTS} not done" in done.stdout
