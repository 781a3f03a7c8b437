"""Models over atroposlib's servers: what they give is checked, and what hides an error is taken off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import anyio
import pytest
import tenacity
from atroposlib.envs.server_handling.server_manager import ServerManager

from hermes_agent import AccessRefused, ModelError
from hermes_agent.deadline import episode_deadline
from hermes_atropos.servers import Servers, ServerSampler
from hermes_exec import ErrorCause

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def servers(complete: Callable[..., Awaitable[object]], wait_s: float = 0) -> Servers:
    config = SimpleNamespace(timeout=5, base_url="http://a/v1")
    made = SimpleNamespace(servers=[SimpleNamespace(config=config)], tokens_and_logprobs_completion=complete)
    return Servers(cast("ServerManager", made), wait_s)


def giving(answer: object) -> Servers:
    async def complete(**asked: Any) -> object:
        return answer

    return servers(complete)


async def test_a_sample() -> None:
    sampler = ServerSampler(giving(([1, 2], [[3, 4]], [[-0.5, -1.0]], [{"type": "length"}])), "sglang")
    assert await sampler.sample([1, 2], max_tokens=2) == ((3, 4), (-0.5, -1.0), "length")


async def test_tinker_is_asked_for_what_it_reads() -> None:
    asked: list[dict[str, Any]] = []

    async def complete(**given: Any) -> object:
        asked.append(given)
        return [1], [[3]], [[-0.5]], ["stop"]

    sampler = ServerSampler(servers(complete), "tinker")
    await sampler.sample([1], max_tokens=2, temperature=1.0, stop_token_ids=[7], top_p=None)
    await sampler.sample([1], max_tokens=2, stop="x", stop_token_ids=[7])
    assert [one["stop"] for one in asked] == [[7], ["x"]]
    assert all(set(one) <= {"input_ids", "max_tokens", "n", "temperature", "stop"} for one in asked)


async def test_a_prompt_that_was_changed_on_the_way_is_told() -> None:
    """atroposlib cuts a doubled token that begins a text."""
    with pytest.raises(ModelError, match="changed the prompt") as told:
        await ServerSampler(giving(([1], [[3]], [[-0.5]], ["stop"])), "vllm").sample([1, 1], max_tokens=2)
    assert told.value.cause is ErrorCause.CONFIG


@pytest.mark.parametrize(
    "answer", [None, ([1], [], [], []), ([1], [[3], [4]], [[-1.0]], ["stop"]), ([1], [[3]], [[0.0]], [{}])]
)
async def test_an_answer_of_another_shape_is_told(answer: object) -> None:
    with pytest.raises(ModelError, match="cannot read the inference server"):
        await ServerSampler(giving(answer), "vllm").sample([1], max_tokens=2)


def refused(status: int) -> Exception:
    request = SimpleNamespace(real_url="http://a/generate")
    return aiohttp.ClientResponseError(cast("Any", request), (), status=status, message="why")


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (refused(500), ModelError, ErrorCause.PROVIDER),
        (refused(422), ModelError, ErrorCause.CONFIG),
        (refused(401), AccessRefused, ErrorCause.CONFIG),
        (KeyError("logprobs"), ModelError, ErrorCause.PROVIDER),
    ],
)
async def test_what_was_wrong_is_told_below_all_tries(
    error: Exception, kind: type[ModelError], cause: ErrorCause
) -> None:
    @tenacity.retry(stop=tenacity.stop_after_attempt(2))
    @tenacity.retry(stop=tenacity.stop_after_attempt(2))
    async def complete(**asked: Any) -> object:
        raise error

    with pytest.raises(kind) as told:
        await ServerSampler(servers(complete), "vllm").sample([1], max_tokens=2)
    assert told.value.cause is cause
    assert "RetryError" not in str(told.value)
    assert type(error).__name__ in str(told.value)
    assert "http://a/v1" in str(told.value)


async def test_a_server_that_stays_away_is_waited_for_once() -> None:
    tries: list[int] = []

    async def complete(**asked: Any) -> object:
        tries.append(1)
        raise ConnectionRefusedError("no")

    sampler = ServerSampler(servers(complete, 0.6), "vllm")
    for _ in range(3):
        with pytest.raises(ModelError, match="ConnectionRefusedError"):
            await sampler.sample([1], max_tokens=2)
    assert len(tries) == 2 + 1 + 1


async def test_a_server_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    async def complete(**asked: Any) -> object:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionRefusedError("no")
        return [1], [[3]], [[-0.5]], ["stop"]

    assert (await ServerSampler(servers(complete, 30), "vllm").sample([1], max_tokens=2)).ids == (3,)
    assert caplog.text.count("waiting up to 30 s for the inference server (http://a/v1): ConnectionRefusedError") == 1
    tries.clear()
    with pytest.raises(ModelError, match="ConnectionRefusedError"):
        await ServerSampler(servers(complete, 0), "vllm").sample([1], max_tokens=2)
    assert len(tries) == 1


async def test_deadline_of_an_episode_stands_still_while_servers_are_away() -> None:
    answers: list[object] = [ConnectionError("refused"), ([1], [[3]], [[-0.5]], ["stop"])]

    async def complete(**asked: Any) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = ServerSampler(servers(complete, wait_s=60), "vllm")
    with anyio.move_on_after(0.3) as scope, episode_deadline(scope):
        await sampler.sample([1], max_tokens=2)
    assert not scope.cancelled_caught
