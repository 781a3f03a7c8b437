"""Models over atroposlib's servers: what they give is checked, and what hides an error is taken off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import anyio
import anyio.abc
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


ANSWER = ([1], [[3]], [[-0.5]], ["stop"])


def fake_server(
    complete: Callable[..., Awaitable[object]], url: str = "http://a/v1", *, health: bool = False
) -> SimpleNamespace:
    config = SimpleNamespace(timeout=5, base_url=url, health_check=health, server_type="vllm", api_key="x")
    return SimpleNamespace(config=config, tokens_and_logprobs_completion=complete)


def servers(complete: Callable[..., Awaitable[object]], wait_s: float = 0) -> Servers:
    return Servers(cast("ServerManager", SimpleNamespace(servers=[fake_server(complete)])), wait_s)


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


def counting_server(url: str, counts: dict[str, int], *, health: bool = False) -> SimpleNamespace:
    async def complete(**asked: Any) -> object:
        counts[url] = counts.get(url, 0) + 1
        await anyio.sleep(0.02)
        return ANSWER

    return fake_server(complete, url, health=health)


async def sample_often(several: list[SimpleNamespace], count: int) -> None:
    sampler = ServerSampler(Servers(cast("ServerManager", SimpleNamespace(servers=several)), 30), "vllm")
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(lambda: sampler.sample([1], max_tokens=2))


async def test_dead_server_beside_a_good_one_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    counts: dict[str, int] = {}
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        good = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        dead = "http://127.0.0.1:9/v1"
        with anyio.fail_after(5):
            await sample_often([counting_server(dead, counts), counting_server(good, counts)], 20)
    assert counts == {good: 20}
    (line,) = (record.message for record in caplog.records if "left out" in record.message)
    assert line.startswith("the inference server http://127.0.0.1:9/v1 is left out until it answers (Connection")
    assert line.endswith("; servers that answer: 1 of 2")


async def test_server_whose_health_check_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    counts: dict[str, int] = {}

    async def refuse(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream):
                await stream.receive()
            await stream.send(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    sick, good = f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port}/other"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse)
        await sample_often([counting_server(sick, counts, health=True), counting_server(good, counts)], 4)
        tasks.cancel_scope.cancel()
    assert counts == {good: 4}
    assert "/health answers 503" in caplog.text


async def test_server_that_answers_again_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    counts: dict[str, int] = {}
    several = [counting_server("none:a", counts), counting_server("none:b", counts)]
    refusals = [ConnectionRefusedError("no")]
    answers = several[0].tokens_and_logprobs_completion

    async def complete(**asked: Any) -> object:
        if refusals:
            raise refusals.pop()
        return await answers(**asked)

    several[0].tokens_and_logprobs_completion = complete
    sampler = ServerSampler(Servers(cast("ServerManager", SimpleNamespace(servers=several)), 30), "vllm")
    with anyio.fail_after(10):
        while "none:a" not in counts:
            await sampler.sample([1], max_tokens=2)
    assert "the inference server none:a answers again" in caplog.text


async def test_requests_go_to_the_server_with_the_fewest() -> None:
    counts: dict[str, int] = {}
    await sample_often([counting_server("none:a", counts), counting_server("none:b", counts)], 10)
    assert counts == {"none:a": 5, "none:b": 5}
