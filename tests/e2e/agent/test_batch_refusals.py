"""Batch runs whose endpoint refuses requests: of one prompt, of every prompt, or with this key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import BatchConfig, read_records, resume_batch, run_batch
from hermes_exec.errors import ConfigError
from tests.e2e.agent.test_batch_run import dataset
from tests.unit.agent.endpoint import Answer, endpoint, ok, refusal

pytestmark = pytest.mark.anyio


async def test_one_request_that_is_forbidden_stops_no_run(tmp_path: Path) -> None:
    """Gateways look into what is sent, and refuse a single prompt with 403."""
    answers = [ok({"content": "done"}), refusal(403, "blocked"), ok({"content": "done"})]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(3)))
    with endpoint(*answers) as server:
        run = BatchConfig(dataset=prompts, out=tmp_path / "run", model="m", base_url=server.base_url, workers=1)
        result = await run_batch(run)
    assert [record["finish"] for record in read_records(run.out)] == ["answered", "model_error", "answered"]
    assert result.unscored == 1


def refused_run(directory: Path, base_url: str, prompts: int) -> BatchConfig:
    file = dataset(directory, *({"prompt": f"p{n}"} for n in range(prompts)))
    return BatchConfig(dataset=file, out=directory / "run", model="m", base_url=base_url, workers=1)


@pytest.mark.parametrize(("status", "answered"), [(401, 0), (401, 1), (402, 1)])
async def test_refused_key_stops_the_run_at_once(tmp_path: Path, status: int, answered: int) -> None:
    answers = [*[ok({"content": "done"}) for _ in range(answered)], refusal(status, "no such key")]
    with endpoint(*answers) as server:
        run = refused_run(tmp_path, server.base_url, 40)
        with pytest.raises(ConfigError, match=r"the run was stopped.*no such key"):
            await run_batch(run)
    assert len(server.requests) == answered + 1
    assert len(list(read_records(run.out))) == answered


@pytest.mark.parametrize("status", [400, 403, 404])
@pytest.mark.parametrize(("prompts", "refused"), [(3, 3), (40, 8)])
async def test_endpoint_that_refuses_the_first_prompts_stops_the_run(
    tmp_path: Path, status: int, prompts: int, refused: int
) -> None:
    with endpoint(reply=lambda _: refusal(status, "no such model")) as server:
        run = refused_run(tmp_path, server.base_url, prompts)
        message = (
            rf"prompts refused: {refused}, answered: none.* at {server.base_url}: .*no such model.*batch resume .*/run"
        )
        with pytest.raises(ConfigError, match=message):
            await run_batch(run)
        records = list(read_records(run.out))
        assert [(record["solved"], record["cause"]) for record in records] == [("unscored", "config")] * refused
        server.reply, before = lambda _: ok({"content": "done"}), len(server.requests)
        result = await resume_batch(run.out)
    assert (result.complete, result.unscored, result.kept) == (True, 0, 0)
    if prompts > refused:  # those that were refused come last
        assert server.requests[before]["messages"][-1]["content"] == f"p{refused}"


async def test_endpoint_that_answers_no_request_is_named_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint(reply=lambda _: refusal(500, "wrong port")) as server:
        run = refused_run(tmp_path, server.base_url, 2).model_copy(update={"max_retries": 0})
        result = await run_batch(run)
    assert (result.unscored, result.stopped) == (2, None)
    assert f"the endpoint at {server.base_url} answered no request; the last error: m: HTTP 500" in caplog.text


async def test_refused_first_prompt_is_a_record_and_the_run_goes_on(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> Answer:
        bad = request["messages"][-1]["content"] == "p0"
        return refusal(400, "image 0 cannot be decoded") if bad else ok({"content": "done"})

    with endpoint(reply=reply) as server:
        result = await run_batch(run := refused_run(tmp_path, server.base_url, 3))
        assert (result.complete, result.unscored) == (True, 1)
        resumed = await resume_batch(run.out)
    assert (resumed.complete, resumed.kept, resumed.unscored) == (True, 2, 1)
    *_, record = read_records(run.out)
    assert (record["prompt_index"], record["solved"], record["finish"]) == (0, "unscored", "model_error")
    assert "image 0 cannot be decoded" in record["errors"]
