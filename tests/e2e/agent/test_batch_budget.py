"""Budgets of a run, several endpoints, and messages that steer a model without being recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_agent import Completion, Message, TokenUsage
from hermes_batch import BatchConfig, read_records, resume_batch, run_batch
from hermes_exec.errors import ConfigError
from tests.e2e.agent.plans import PlanModel, Step, completion, wire
from tests.e2e.agent.test_batch_run import config
from tests.e2e.agent.test_commands import model, plan_endpoint, prompts, run
from tests.unit.agent.endpoint import Answer, endpoint, ok

pytestmark = pytest.mark.timeout(600)
NAMES = ("a", "b", "c", "d", "e")
TWO_TURNS: dict[str, list[Step]] = {name: [["touch made"], "Done."] for name in NAMES}
"""Each turn has 11 and 3 tokens."""


def reply(request: dict[str, Any]) -> Answer:
    prompt = next(m["content"] for m in reversed(request["messages"]) if m["role"] == "user")
    return ok(wire(TWO_TURNS[prompt][sum(m["role"] == "tool" for m in request["messages"])]))


def test_tokens_end_a_run_which_a_larger_budget_continues(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with plan_endpoint(TWO_TURNS) as url:
        batch = ("batch", "run", str(prompts(tmp_path, *NAMES)), "--out", str(out), *model(url))
        ended = run(*batch, "--workers", "1", "--budget-tokens", "50", "--json")
        refused = run("batch", "resume", str(out), "--api-key", "x")
        more = run("batch", "resume", str(out), "--api-key", "x", "--budget-tokens", "80", "--json")
        rest = run("batch", "resume", str(out), "--api-key", "x", "--budget-tokens", "0")
    facts = json.loads(ended.stdout)
    assert (ended.returncode, facts["records"], facts["tokens"]) == (3, 2, 56), ended.stderr
    files = {"trajectories": "trajectories.jsonl", "report": "report.html", "parquet": "trajectories.parquet"}
    assert {name: facts[name] for name in files} == {name: str(out / file) for name, file in files.items()}
    assert "the budget is used up: tokens 56 of 50" in ended.stderr
    assert f"hermes-exec batch resume {out}" in ended.stderr
    assert (refused.returncode, "tokens 56 of 50" in refused.stderr) == (2, True), refused.stderr
    assert (more.returncode, json.loads(more.stdout)["tokens"]) == (3, 84)
    assert rest.returncode == 0, rest.stderr
    assert sorted(record["id"] for record in read_records(out)) == [f"task-{n}" for n in range(5)]


def test_cost_by_prices_ends_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with plan_endpoint(TWO_TURNS) as url:
        batch = ("batch", "run", str(prompts(tmp_path, *NAMES)), "--out", str(out), *model(url), "--workers", "1")
        ended = run(*batch, "--budget-cost", "60", "--price", "prompt=1000000,completion=2000000", "--json")
        unpriced = run(*batch, "--budget-cost", "60", "--overwrite")
        free = run(*batch, "--budget-cost", "60", "--price", "prompt=0,completion=0", "--overwrite")
        wrong = run(*batch, "--price", "prompt=1", "--overwrite")
    assert ended.returncode == 3, ended.stderr
    assert json.loads(ended.stdout)["cost"] == pytest.approx(2 * 34)
    assert (unpriced.returncode, "reports no cost" in unpriced.stderr) == (2, True), unpriced.stderr
    assert free.returncode == 0, free.stderr
    assert (wrong.returncode, "the price of completion tokens is missing" in wrong.stderr) == (2, True)


def test_costs_by_prices_are_in_the_records(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with plan_endpoint(TWO_TURNS) as url:
        batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(out), *model(url))
        assert run(*batch, "--price", "prompt=1000000,completion=2000000", "--max-cost", "10").returncode == 0
    (record,) = read_records(out)
    assert (record["finish"], record["cost"]) == ("budget", 17.0)
    assert [turn["cost"] for turn in json.loads(record["usage"])] == [17.0]


def test_time_ends_a_run_whose_model_is_silent(tmp_path: Path) -> None:
    out, go = tmp_path / "out", threading.Event()

    def hold(prompt: str, turn: int) -> None:
        if prompt == "b" and not go.is_set():
            go.wait(30)

    with plan_endpoint(TWO_TURNS, hold) as url:
        batch = ("batch", "run", str(prompts(tmp_path, "a", "b")), "--out", str(out), *model(url))
        ended = run(*batch, "--workers", "2", "--budget-time", "4")
        go.set()
        rest = run("batch", "resume", str(out), "--api-key", "x", "--budget-time", "100")
    assert (ended.returncode, "time 4 s" in ended.stderr) == (3, True), ended.stderr
    assert rest.returncode == 0, rest.stderr
    assert json.loads((out / "run.json").read_text())["seconds"] >= 4
    assert [record["id"] for record in read_records(out)] == ["task-0", "task-1"]


class Paid(PlanModel):
    """A model whose completions cost 1. The prompt `slow` never ends its second turn."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        if messages[-1]["role"] == "tool" and messages[0]["content"] == "slow":
            await anyio.sleep_forever()
        if messages[-1]["role"] == "user" and messages[0]["content"] == "quick":
            await anyio.sleep(1)
        step: Step = ["touch made"] if messages[-1]["role"] == "user" else "Done."
        return replace(completion(step, "x"), usage=TokenUsage(1, 1, 1, 1.0))


@pytest.mark.anyio
async def test_cancelled_episodes_count(tmp_path: Path) -> None:
    rows = [{"prompt": "slow"}, {"prompt": "quick"}]
    settings = config(tmp_path, {}, *rows, model=Paid({}), workers=2, budget_cost=3)
    result = await run_batch(settings)
    assert (result.records, result.spending.cost, result.recorded.cost) == (1, 3.0, 2.0)
    assert result.stopped is not None
    with pytest.raises(ConfigError, match="cost 3 of 3"):
        await resume_batch(settings.out, model=Paid({}))
    again = await resume_batch(settings.out, model=Paid({}), budget_cost=4)
    assert (again.records, again.spending.cost) == (1, 4.0)


@pytest.mark.anyio
async def test_a_budget_that_suffices_is_no_end(tmp_path: Path) -> None:
    result = await run_batch(config(tmp_path, {}, {"prompt": "quick"}, model=Paid({}), budget_cost=2))
    assert (result.complete, result.stopped, result.spending.cost) == (True, None, 2.0)


@pytest.mark.parametrize("option", ["--budget-cost=-1", "--budget-cost=nan", "--budget-tokens=0", "--budget-time=0"])
def test_impossible_budgets_are_refused(tmp_path: Path, option: str) -> None:
    done = run(
        "batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model("http://x/v1"), option
    )
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "out").exists()


def test_steering_messages_are_sent_and_not_recorded(tmp_path: Path) -> None:
    out, prefill = tmp_path / "out", tmp_path / "prefill.json"
    example = [{"role": "user", "content": "an example"}, {"role": "assistant", "content": "its answer"}]
    prefill.write_text(json.dumps(example))
    with endpoint(reply=reply) as server:
        batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(out), *model(server.base_url))
        steer = ("--system-prompt", "rules", "--ephemeral-system-prompt", "think aloud", "--prefill", str(prefill))
        assert run(*batch, *steer).returncode == 0
    for request in server.requests:
        assert request["messages"][:3] == [{"role": "system", "content": "rules\n\nthink aloud"}, *example]
    (record,) = read_records(out)
    assert json.loads(record["messages"])[:2] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a"},
    ]
    assert "think aloud" not in json.dumps(record)
    assert "an example" not in json.dumps(record)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("{}", "is not a JSON list"),
        ('[{"role": "system", "content": "x"}]', "use ephemeral_system_prompt"),
        ('[{"role": "asistant", "content": "x"}]', "did you mean 'assistant'"),
        ('[{"role": "user"}]', "has no content"),
    ],
)
def test_wrong_prefill_is_refused_before_the_start(tmp_path: Path, content: str, message: str) -> None:
    prefill = tmp_path / "prefill.json"
    prefill.write_text(content)
    batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model("http://x/v1"))
    done = run(*batch, "--prefill", str(prefill))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_long_episodes_are_shortened_and_recorded_whole(tmp_path: Path) -> None:
    steps: list[Step] = [*[[f"seq {n}000 {n}999"] for n in range(1, 5)], "Done."]

    def answer(request: dict[str, Any]) -> Answer:
        return ok(wire(steps[sum(m["role"] == "assistant" for m in request["messages"])]))

    with endpoint(reply=answer) as server:
        batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model(server.base_url))
        assert run(*batch, "--context", "shorten", "--context-tokens", "2000").returncode == 0
        wrong = run(*batch, "--overwrite", "--context", "shorten")
        unknown = run(*batch, "--overwrite", "--context", "shrink", "--context-tokens", "2000")
    (record,) = read_records(tmp_path / "out")
    whole = json.loads(record["messages"])
    assert (record["compacted"], record["trainable"], record["finish"]) == (True, True, "answered")
    assert len(whole) == 10
    sizes = [sum(len(str(m.get("content"))) for m in request["messages"]) for request in server.requests]
    assert max(sizes) < sum(len(str(m["content"])) for m in whole) / 2
    assert (wrong.returncode, "belong together" in wrong.stderr) == (2, True), wrong.stderr
    assert (unknown.returncode, "context" in unknown.stderr) == (2, True), unknown.stderr


def test_long_episodes_are_summarised_by_the_model(tmp_path: Path) -> None:
    steps: list[Step] = [*[[f"seq {n}000 {n}999"] for n in range(1, 6)], "Done."]

    def answer(request: dict[str, Any]) -> Answer:
        if "tools" not in request:
            return ok({"content": "THE SUMMARY"})
        return ok(wire(steps[sum("tools" in each for each in server.requests) - 1]))

    with endpoint(reply=answer) as server:
        batch = ("batch", "run", str(prompts(tmp_path, "a")), "--out", str(tmp_path / "out"), *model(server.base_url))
        done = run(*batch, "--context", "summarise", "--context-tokens", "5000")
    assert done.returncode == 0, done.stderr
    (record,) = read_records(tmp_path / "out")
    assert (record["compacted"], record["finish"], record["api_calls"]) == (True, "answered", len(server.requests))
    assert "THE SUMMARY" not in record["messages"]
    assert "THE SUMMARY" in json.dumps(server.requests[-1])
    assert any("tools" not in request for request in server.requests)


def test_several_endpoints_share_the_prompts(tmp_path: Path) -> None:
    with endpoint(reply=reply) as one, endpoint(reply=reply) as two:
        batch = ("batch", "run", str(prompts(tmp_path, *NAMES)), "--out", str(tmp_path / "out"), *model(one.base_url))
        done = run(*batch, "--base-url", two.base_url, "--workers", "5")
        assert done.returncode == 0, done.stderr
        assert {len(server.requests) % 2 for server in (one, two)} == {0}, "an episode stays on its endpoint"
        assert len(one.requests) + len(two.requests) == 10
        assert one.requests
        assert two.requests


@pytest.mark.anyio
@pytest.mark.parametrize(
    "setting", [{"prices": {"prompt": 1, "completion": 1}}, {"prefill": [{"role": "user", "content": "x"}]}]
)
async def test_settings_of_an_endpoint_are_refused_for_a_model_object(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set it in the model object"):
        await run_batch(config(tmp_path, {}, {"prompt": "a"}, **setting))
    with pytest.raises(ConfigError, match="a price is for"):
        BatchConfig.of({"dataset": "x.jsonl", "out": tmp_path, "model": "m", "prices": {"promt": 1, "completion": 1}})
