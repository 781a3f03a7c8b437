"""A model behind several endpoints, against real HTTP servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from hermes_agent import AccessRefused, EndpointAway, ModelSession, OpenAIModel, ReplicatedModel
from hermes_agent.models.factory import create_model
from hermes_exec.errors import ConfigError
from tests.support.waiting import until
from tests.unit.agent.endpoint import Answer, Endpoint, endpoint, ok, refusal

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.02)
    monkeypatch.setattr("hermes_agent.models.pace._LONGEST_PROBE_S", 0.05)
    monkeypatch.setattr("hermes_agent.models.replicated._PATIENCE_S", 0.1)
    monkeypatch.setattr("hermes_agent.models.replicated._PROBE_INTERVAL_S", 0.5)


class Replica:
    """An endpoint that a test can take away and bring back. `held` requests wait for `go`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.hold = False
        self.go = threading.Event()
        self.server: Endpoint

    def reply(self, request: dict[str, Any]) -> Answer:
        if self.hold:
            assert self.go.wait(10)
        return ok({"content": self.name}) if self.is_up else refusal(503, "down")


@contextmanager
def replicas(*names: str) -> Iterator[list[Replica]]:
    each = [Replica(name) for name in names]
    with ExitStack() as stack:
        for one in each:
            one.server = stack.enter_context(endpoint(reply=one.reply))
        yield each


@asynccontextmanager
async def model(each: list[Replica], **options: Any) -> AsyncIterator[ReplicatedModel]:
    made = ReplicatedModel([OpenAIModel("m", base_url=one.server.base_url, **options) for one in each])
    try:
        yield made
    finally:
        await made.aclose()


async def ask(session: ModelSession) -> str | None:
    return (await session.complete(ASK)).content


async def test_episodes_spread_and_stay_on_their_endpoint() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            sessions = [made.session([]) for _ in range(4)]
            first = [await ask(session) for session in sessions]
            assert first == ["a", "b", "a", "b"]
            for _ in range(3):
                assert [await ask(session) for session in sessions] == first


async def test_an_episode_begins_where_the_fewest_requests_are() -> None:
    with replicas("a", "b") as each:
        each[0].hold = True
        async with model(each) as made, anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(ask, made.session([]))
            # The first request is held at a, and the one to b ends.
            await until(lambda: each[0].server.requests and each[1].server.requests)
            await until(lambda: made.status.in_flight == 1)
            assert [await ask(made.session([])) for _ in range(3)] == ["b"] * 3
            each[0].go.set()


async def test_an_outage_moves_an_episode_which_then_stays() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            session = made.session([])
            assert await ask(session) == "a"
            each[0].is_up = False
            with anyio.fail_after(5):
                assert await ask(session) == "b"
            each[0].is_up = True
            assert await ask(session) == "b"


async def test_an_outage_moves_all_requests_that_wait() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            sessions = [made.session([]) for _ in range(20)]
            for session in sessions:
                await ask(session)
            each[0].is_up = False
            answers: list[str | None] = []

            async def note(session: ModelSession) -> None:
                answers.append(await ask(session))

            with anyio.fail_after(5):
                async with anyio.create_task_group() as tasks:
                    for session in sessions:
                        tasks.start_soon(note, session)
            assert answers == ["b"] * 20


async def test_requests_move_to_the_first_endpoint_that_is_back() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            sessions = [made.session([]) for _ in range(6)]
            for session in sessions:
                await ask(session)
            each[0].is_up = each[1].is_up = False
            answers: list[str | None] = []

            async def note(session: ModelSession) -> None:
                answers.append(await ask(session))

            with anyio.fail_after(8):
                async with anyio.create_task_group() as tasks:
                    for session in sessions:
                        tasks.start_soon(note, session)
                    await until(lambda: (made.status.away_s or 0.0) >= 0.3)
                    assert "down" in made.status.reason
                    assert not answers
                    each[1].is_up = True
            assert answers == ["b"] * 6


async def test_an_episode_finds_out_that_an_endpoint_is_back() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            each[0].is_up = False
            with anyio.fail_after(10):
                assert await ask(made.session([])) == "b"
                each[0].is_up = True
                while await ask(made.session([])) != "a":  # noqa: ASYNC110 - each request is a try of its own
                    await anyio.sleep(0.05)
            assert [status.away_s for _, status in made.status.parts] == [None, None]


async def test_an_outage_of_all_endpoints_fails_after_the_wait() -> None:
    with replicas("a", "b") as each:
        each[0].is_up = each[1].is_up = False
        async with model(each, wait_outage_s=0.3) as made:
            with anyio.fail_after(5), pytest.raises(EndpointAway):
                await ask(made.session([]))


async def test_a_refused_key_is_no_outage() -> None:
    with endpoint(refusal(401, "bad key")) as one, endpoint() as two:
        made = ReplicatedModel([OpenAIModel("m", base_url=each.base_url) for each in (one, two)])
        with pytest.raises(AccessRefused, match="bad key"):
            await made.complete(ASK, [])
        await made.aclose()


async def test_status_has_the_url_of_each_endpoint() -> None:
    with replicas("a", "b") as each:
        async with model(each) as made:
            assert [url for url, _ in made.status.parts] == [one.server.base_url for one in each]
            assert (made.status.away_s, made.status.in_flight, made.status.waiting) == (None, 0, 0)


async def test_replicas_are_one_model_at_different_endpoints() -> None:
    one, two = (f"http://127.0.0.1:{port}/v1" for port in (1, 2))
    with pytest.raises(ConfigError, match="at least one"):
        ReplicatedModel([])
    with pytest.raises(ConfigError, match="not a, b"):
        ReplicatedModel([OpenAIModel("a", base_url=one), OpenAIModel("b", base_url=two)])
    with pytest.raises(ConfigError, match=f"{one} is given twice"):
        ReplicatedModel([OpenAIModel("a", base_url=one), OpenAIModel("a", base_url=one)])
    assert isinstance(create_model("m", base_url=(one, two)), ReplicatedModel)
    assert isinstance(create_model("m", base_url=one), OpenAIModel)
