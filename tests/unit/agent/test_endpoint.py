"""What those who use one endpoint share, against a real HTTP server on loopback."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hermes_agent import AgentLoop, OpenAIModel
from hermes_agent.errors import AccessRefused, EndpointFailing, ModelError
from hermes_agent.models.endpoint import BadAnswer, Endpoint, EndpointStatus
from hermes_agent.models.failures import retry_after_s
from hermes_agent.models.pace import FIRST_IN_FLIGHT
from hermes_exec.errors import ConfigError, ErrorCause
from tests.support.waiting import until
from tests.unit.agent.endpoint import Answer, endpoint, ok, refusal
from tests.unit.agent.toolboxes import FunctionTools, echo

pytestmark = [pytest.mark.anyio, pytest.mark.loops]
GOOD = Answer(200, b'{"n": 1}', {"content-type": "application/json"})
CALL = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
IDLE = EndpointStatus()
SOON = refusal(429, **{"retry-after-ms": "10"})


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hermes_agent.models.pace._FIRST_PROBE_S", 0.01)


class Held:
    """An answer that is given when the test says so; `asked` counts the requests that wait for it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self) -> Answer:
        self.asked.release()
        self.released.wait(20)
        return self._answer

    async def wait_asked(self, times: int = 1) -> None:
        for _ in range(times):
            await anyio.to_thread.run_sync(self.asked.acquire, abandon_on_cancel=True)


@asynccontextmanager
async def opened(base_url: str, **options: Any) -> AsyncIterator[Endpoint]:
    made = Endpoint(base_url, **options)
    try:
        yield made
    finally:
        with anyio.CancelScope(shield=True):
            await made.aclose()


async def ask(to: Endpoint, prompt: int = 1) -> int:
    return int(await to.post("/sample", {"prompt": [prompt]}, lambda answer: answer["n"]))


def fail_zero(request: dict[str, Any]) -> Answer:
    """Like an engine that cannot parse what it wrote on one prompt, and answers all others."""
    return refusal(500, "cannot parse") if request["prompt"] == [0] else GOOD


async def errors_of(asked: Callable[[], Any], into: list[ModelError]) -> None:
    try:
        await asked()
    except ModelError as error:
        into.append(error)


async def test_a_path_is_relative_or_a_whole_url() -> None:
    with endpoint(GOOD, GOOD) as server:
        async with opened(server.base_url, api_key="k") as made:
            assert await ask(made) == 1
            assert await made.post(server.base_url.replace("/v1", "/generate"), {}, lambda answer: answer["n"]) == 1
    assert server.paths == ["/v1/sample", "/generate"]
    assert server.requests == [{"prompt": [1]}, {}]
    assert server.authorizations == ["Bearer k"] * 2


async def test_an_answer_that_the_reader_refuses_is_asked_for_again() -> None:
    answers: Iterator[BadAnswer | int] = iter([BadAnswer("no ids"), 5])

    def read(_: object) -> int:
        if isinstance(answer := next(answers), BadAnswer):
            raise answer
        return answer

    with endpoint(GOOD, GOOD) as server:
        async with opened(server.base_url) as made:
            assert await made.post("/x", {}, read) == 5


async def test_a_bug_of_the_reader_passes_through() -> None:
    with endpoint(GOOD) as server:
        async with opened(server.base_url) as made:
            with pytest.raises(KeyError):
                await made.post("/x", {}, lambda answer: answer["missing"])
            assert made.status == IDLE


async def test_all_with_one_url_and_key_share_what_is_in_flight() -> None:
    held = Held(GOOD)
    with endpoint(*[held] * (FIRST_IN_FLIGHT + 2)) as server:
        async with (
            opened(server.base_url) as one,
            opened(server.base_url) as two,
            opened(server.base_url, api_key="other") as other,
            anyio.create_task_group() as tasks,
        ):
            for number in range(FIRST_IN_FLIGHT + 1):
                tasks.start_soon(ask, (one, two)[number % 2])
            await held.wait_asked(FIRST_IN_FLIGHT)
            assert one.status == two.status == EndpointStatus(in_flight=FIRST_IN_FLIGHT, waiting=1)
            assert other.status == IDLE
            tasks.start_soon(ask, other)
            await held.wait_asked()
            assert len(server.requests) == FIRST_IN_FLIGHT + 1
            held.released.set()
        assert len(server.requests) == FIRST_IN_FLIGHT + 2


@pytest.mark.parametrize("answer", [refusal(401), refusal(402), refusal(429, code="insufficient_quota")])
async def test_a_refused_key_stops_all_that_wait(answer: Answer) -> None:
    held = Held(answer)
    errors: list[ModelError] = []
    with endpoint(*[held] * FIRST_IN_FLIGHT, GOOD) as server:
        async with opened(server.base_url) as made:
            async with anyio.create_task_group() as tasks:
                for _ in range(2 * FIRST_IN_FLIGHT):
                    tasks.start_soon(errors_of, partial(ask, made), errors)
                await held.wait_asked(FIRST_IN_FLIGHT)
                held.released.set()
            assert len(server.requests) == FIRST_IN_FLIGHT
            assert await ask(made) == 1, "a key that was mended is tried"
    assert [type(error) for error in errors] == [AccessRefused] * 2 * FIRST_IN_FLIGHT


async def test_in_an_outage_one_asks_for_all() -> None:
    held, probe = Held(refusal(503)), Held(GOOD)
    with endpoint(*[held] * 8, probe, *[GOOD] * 7) as server:
        async with opened(server.base_url) as made, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask, made)
            await held.wait_asked(8)
            held.released.set()
            await probe.wait_asked()
            await until(lambda: made.status.waiting == 7)  # the last refusals may not have been read yet
            status = made.status
            assert (status.in_flight, status.waiting, status.reason) == (1, 7, "HTTP 503: no")
            assert status.away_s is not None
            probe.released.set()
        assert len(server.requests) == 16


async def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hermes_agent")
    with endpoint(*[refusal(503, "sleeping")] * 4, GOOD) as server:
        async with opened(server.base_url) as made:
            await ask(made)
    assert [record.message.replace(server.base_url, "URL") for record in caplog.records] == [
        "URL completes no request: HTTP 503: sleeping; waiting for it",
        "URL completes requests again",
    ]


async def test_deadline_of_an_episode_stands_still_during_an_outage() -> None:
    held = Held(ok({"content": "x"}))
    with endpoint(refusal(503), held) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        loop = AgentLoop(model, FunctionTools(echo), deadline_s=0.5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_release_after, held, 1.0)
            episode = await loop.run("hi")
            tasks.cancel_scope.cancel()  # it would wait for ever for an episode that ended too early
        await model.aclose()
    assert (episode.finish, episode.duration_s > 1) == ("answered", True)


async def test_deadline_of_an_episode_goes_on_after_an_outage() -> None:
    silent = Held(ok({"content": "x"}))
    with endpoint(refusal(503), ok({"content": "", "tool_calls": [CALL]}), silent) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        episode = await AgentLoop(model, FunctionTools(echo), deadline_s=0.5).run("hi")
        silent.released.set()
        await model.aclose()
    assert (episode.finish, episode.turns) == ("deadline", 1)


async def _release_after(held: Held, seconds: float) -> None:
    await held.wait_asked()
    await anyio.sleep(seconds)
    held.released.set()


async def test_after_an_outage_that_lasted_too_long_each_request_is_one_try() -> None:
    with endpoint(*[refusal(502)] * 3, GOOD) as server:
        async with opened(server.base_url, wait_outage_s=0) as made:
            for _ in range(3):
                with pytest.raises(ModelError, match="completed no request"):
                    await ask(made)
            assert await ask(made) == 1
            assert made.status == IDLE
    assert len(server.requests) == 4


@asynccontextmanager
async def behind_two(base_url: str, probe: Held, wait_outage_s: float) -> AsyncIterator[Endpoint]:
    """One that comes while the first of two patient ones waits for the answer of a probe."""
    async with (
        opened(base_url) as patient,
        opened(base_url, wait_outage_s=wait_outage_s) as made,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask, patient)
        await probe.wait_asked()
        tasks.start_soon(ask, patient)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            yield made
        probe.released.set()


@pytest.mark.parametrize(
    "answer",
    [
        lambda key: refusal(400, f"bad request; headers: Bearer {key}"),
        lambda key: refusal(401, f"Incorrect API key provided: {key}"),
        lambda key: refusal(503, f"no upstream for {json.dumps(key)}"),
        lambda key: refusal(500, json.dumps(json.dumps({"key": key}))),
        lambda key: Answer(200, f"key {key}".encode()),
    ],
)
async def test_errors_do_not_quote_the_key(answer: Callable[[str], Answer], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hermes_agent")
    key = 'sk-"secret"-0123456789'
    with endpoint(reply=lambda _: answer(key)) as server:
        async with opened(server.base_url, api_key=key, retries=1, wait_outage_s=0) as made:
            with pytest.raises(ModelError, match=r"\*\*\*") as caught:
                await ask(made)
            assert "secret" not in made.status.reason
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert "secret" not in caplog.text


async def test_word_in_the_place_of_a_key_stays_in_errors() -> None:
    with endpoint(refusal(404, "the model none is EMPTY")) as server:
        async with opened(server.base_url, api_key="EMPTY") as made:
            with pytest.raises(ModelError, match="none is EMPTY"):
                await ask(made)


async def test_who_stands_further_back_waits_no_longer_than_asked() -> None:
    probe = Held(GOOD)
    with endpoint(refusal(503), probe, GOOD) as server:
        async with behind_two(server.base_url, probe, wait_outage_s=5) as hasty:
            with pytest.raises(ModelError, match="completed no request for"):
                await ask(hasty)
    assert len(server.requests) == 3


async def test_who_comes_when_it_has_been_away_for_long_does_not_stand_in_line() -> None:
    probe = Held(GOOD)
    with endpoint(refusal(503), probe, GOOD, GOOD) as server:
        async with behind_two(server.base_url, probe, wait_outage_s=0) as late:
            assert await ask(late) == 1
    assert len(server.requests) == 4


async def test_many_failures_in_a_row_are_an_outage_and_no_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_agent.models.endpoint._FIRST_PAUSE_S", 1.0)
    held = Held(refusal(500))
    with endpoint(*[held] * 8, *[refusal(500)] * 4, *[GOOD] * 8) as server:
        # The first to fail may ask again before the last one has failed.
        async with opened(server.base_url, retries=2) as made, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask, made)
            await held.wait_asked(8)
            held.released.set()
        assert len(server.requests) == 20


@pytest.mark.parametrize("failing", [6, 12])
async def test_requests_that_always_fail_end_while_others_succeed(failing: int) -> None:
    errors: list[ModelError] = []
    with endpoint(reply=fail_zero) as server:
        async with opened(server.base_url) as made, anyio.create_task_group() as tasks:
            with anyio.fail_after(20):
                for _ in range(failing):
                    tasks.start_soon(errors_of, partial(ask, made, 0), errors)
                while len(errors) < failing:
                    assert await ask(made) == 1
    assert [(type(error), error.status) for error in errors] == [(ModelError, 500)] * failing


async def test_few_requests_that_always_fail_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hermes_agent")
    errors: list[ModelError] = []
    with endpoint(reply=fail_zero) as server:
        async with opened(server.base_url) as made:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(errors_of, partial(ask, made, 0), errors)
            assert made.status == IDLE
    assert [str(error) for error in errors] == [f"{server.base_url}: HTTP 500: cannot parse"] * 3
    assert (len(server.requests), caplog.records) == (15, [])


async def test_outage_of_an_endpoint_that_fails_each_request_names_its_own_failure() -> None:
    held = Held(refusal(500, "engine is dead"))
    errors: list[ModelError] = []
    with endpoint(*[held] * 8, reply=lambda _: refusal(500, "engine is dead")) as server:
        async with opened(server.base_url, wait_outage_s=0) as made, anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(errors_of, partial(ask, made), errors)
            await held.wait_asked(8)
            held.released.set()
    assert {(type(error), error.status) for error in errors} == {(EndpointFailing, 500)}
    assert {str(error).split(" ", 1)[1] for error in errors} == {
        "completed no request for 0 s, the last time: HTTP 500: engine is dead"
    }


async def test_a_request_that_came_too_soon_is_no_outage() -> None:
    with endpoint(*[SOON] * 2, GOOD) as server:
        async with opened(server.base_url, wait_outage_s=0, retries=0) as made:
            assert await ask(made) == 1
    assert len(server.requests) == 3


async def test_one_that_refuses_all_for_coming_too_soon_is_away() -> None:
    with endpoint(*[SOON] * 3) as server:
        async with opened(server.base_url, wait_outage_s=0) as made:
            with pytest.raises(ModelError, match=r"completed no request.*HTTP 429"):
                await ask(made)
    assert len(server.requests) == 3


async def test_a_request_that_is_called_off_makes_room() -> None:
    held = Held(GOOD)
    with endpoint(*[held] * FIRST_IN_FLIGHT, GOOD) as server:
        async with opened(server.base_url) as made:
            async with anyio.create_task_group() as tasks:
                for _ in range(FIRST_IN_FLIGHT + 3):
                    tasks.start_soon(ask, made)
                await held.wait_asked(FIRST_IN_FLIGHT)
                tasks.cancel_scope.cancel()
            assert made.status == IDLE
            assert await ask(made) == 1
        held.released.set()


async def test_another_asks_when_the_one_that_asked_for_all_is_called_off() -> None:
    held, probe = Held(refusal(503)), Held(GOOD)
    scopes = [anyio.CancelScope() for _ in range(2)]
    done: list[int] = []

    async def within(scope: anyio.CancelScope, made: Endpoint) -> None:
        with scope:
            done.append(await ask(made))

    with endpoint(held, held, probe, GOOD) as server:
        async with opened(server.base_url) as made, anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(within, scope, made)
            await held.wait_asked(2)
            held.released.set()
            await probe.wait_asked()
            # Either may be the one that asks: called off, it leaves its place to the other.
            scopes[0].cancel()
            probe.released.set()
        assert done == [1]
        assert made.status == IDLE


@pytest.fixture
def own_certificate(tmp_path: Path) -> ssl.SSLContext:
    """Of an authority that nobody knows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path / "server.pem"
    path.write_bytes(secret + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


async def test_a_certificate_that_nobody_knows_is_not_waited_for(own_certificate: ssl.SSLContext) -> None:
    with endpoint(tls=own_certificate) as server:
        async with opened(server.base_url) as made:
            with pytest.raises(ModelError, match=r"no connection.*CERTIFICATE_VERIFY_FAILED") as caught:
                await ask(made)
            assert made.status == IDLE
    assert caught.value.cause == ErrorCause.CONFIG


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, now=10) == seconds


async def test_login_in_a_url_is_sent_and_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with endpoint(ok({"role": "assistant", "content": "hi"}), refusal(401)) as served, caplog.at_level(logging.DEBUG):
        url = served.base_url.replace("://", "://me:pass%40word-9@")
        async with aclosing(OpenAIModel("m", base_url=url, api_key="key-s3cret-9")) as model:
            assert (await model.complete([{"role": "user", "content": "s3cret-prompt"}], ())).content
            with pytest.raises(ModelError) as caught:
                await model.complete([{"role": "user", "content": "s3cret-prompt"}], ())
    encoded = b64encode(b"me:pass@word-9").decode()
    assert served.authorizations == [f"Basic {encoded}"] * 2
    told = f"{caplog.text} {caught.value!r} {model!r}"
    assert not [secret for secret in ("word-9", encoded, "s3cret") if secret in told]


@pytest.mark.parametrize(
    "url", ["http://h/v1?key=s3cret", "http://me:s3cret@/v1", "ftp://me:s3cret@h", "http://h/v1#s3cret"]
)
async def test_refused_url_shows_no_secret(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an endpoint") as caught:
        OpenAIModel("m", base_url=url)
    assert "s3cret" not in str(caught.value)
