"""Requests to a model server: queued with all others to it, and sent again if that may help."""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import math
import random
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import anyio
from anyio.lowlevel import RunVar

from hermes_agent.errors import ModelError
from hermes_agent.models.events import EventDecoder
from hermes_agent.models.failures import (
    FailureKind,
    RequestFailure,
    answer_failure,
    connection_failure,
    silence_failure,
    status_failure,
)
from hermes_agent.models.gate import EndpointStatus, Gate, forget, gate_of, status_of
from hermes_exec.errors import ConfigError, ErrorCause
from hermes_exec.redact import mask_error, spellings

if TYPE_CHECKING:
    import openai

OPENAI_URL, NO_KEY = "https://api.openai.com/v1", "none"
logger = logging.getLogger(__name__)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_EXCERPT_BYTES = 200
# A shorter key is a word such as `EMPTY`, not a secret, and may be a part of other words.
_SHORTEST_KEY = 8
_DONE = "[DONE]"
_REST_S, _USAGE_S, _CLOSE_S = 0.25, 5.0, 1.0
T = TypeVar("T")

__all__ = ["Assembler", "BadAnswer", "Endpoint", "EndpointStatus"]


class Assembler(Protocol):
    """Assembles an answer from the events of a stream."""

    @property
    def finished(self) -> bool:
        """Whether the answer seems complete. Facts about it may follow."""
        ...

    def add(self, event: object) -> None:
        """Add the next event. Raise BadAnswer if it is an error."""
        ...

    def is_progress(self, event: object) -> bool:
        """Return whether an event brings a piece of the answer, and does not only keep the connection alive."""
        ...

    def answer(self, *, ended: bool) -> object:
        """Return the whole answer. `ended` means that the stream was closed with `[DONE]`. Raise BadAnswer if it is
        incomplete.
        """
        ...


class BadAnswer(Exception):
    """Raised by the reader of an unusable answer. The request is sent again."""


class Endpoint:
    """Sends requests to a server with the client of the package `openai`.

    All objects with the same `base_url` and `api_key` share, in one event loop, the number of requests in flight (16 at
    first, up to 1,000), their rate, and the state of an outage:

    - A request that comes too soon (HTTP 429; 503 and 529 with `Retry-After`) holds back all requests for as long as
      the server asks (at most 60 s; 1 s and more if it does not ask). From then on requests are sent evenly spaced, at
      a rate that adapts to the server.
    - While the server is away (no connection; HTTP 408, 502, 503, 521 to 523, 529; 8 failures in a row, of 4 requests),
      all requests wait, and one after another probes whether it is back, with pauses of up to 15 s. Meanwhile the
      `deadline_s` of an episode stands still.
    - A refused key or an empty quota is an AccessRefused for all waiting requests.

    A request is sent again if a completion may have started and was lost: another status of 500 or more, a broken
    connection, silence, or an unusable answer. Tries during an outage do not count, unless another request succeeded
    between them.

    Args:
        base_url: The URL of the server. None: OpenAI's.
        api_key: The key. From 8 characters on it is masked in errors, whatever the endpoint quotes.
        timeout_s: Longest time without a piece of an answer, even if the connection is kept alive. An answer that is
            not streamed comes at once, after all of its time.
        connect_timeout_s: Longest connection attempt.
        retries: How often a lost completion is requested again. It may be paid for twice, which 0 prevents.
        wait_outage_s: How long a request waits during an outage before it fails with EndpointAway.
        name: A name for errors, in place of the URL.

    Raises:
        ConfigError: If the URL or a bound is invalid, or `openai` is not installed.
    """

    def __init__(
        self,
        base_url: str | None,
        *,
        api_key: str = "none",
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        retries: int = 4,
        wait_outage_s: float = 1800.0,
        name: str | None = None,
    ) -> None:
        _check_bounds(timeout_s, connect_timeout_s, retries, wait_outage_s)
        if base_url is not None:
            _check_url(base_url)
        if importlib.util.find_spec("openai") is None:
            raise ConfigError("models behind an endpoint need the package openai: pip install 'hermes-exec[agent]'")
        if base_url is None and api_key == NO_KEY:
            raise ConfigError("OpenAI's own endpoint needs an api_key; for another one give its base_url")
        self._base_url, self._login = _split_login(base_url or OPENAI_URL)
        self._api_key = api_key
        self._secrets = spellings(secret for secret in (api_key, self._login) if len(secret) >= _SHORTEST_KEY)
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._retries, self._wait_outage_s = retries, wait_outage_s
        self._name = name or self._base_url
        # Connections belong to the event loop that opened them.
        self._client: RunVar[openai.AsyncOpenAI | None] = RunVar(f"client {id(self)}", None)

    @property
    def status(self) -> EndpointStatus:
        """The state of the endpoint, for all its users in this event loop."""
        return status_of(self._base_url, self._api_key)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        assemble: Callable[[], Assembler] | None = None,
    ) -> T:
        """Send `body` as JSON to `path` (a URL, or relative to `base_url`) and return the result of `read` for the
        answer's JSON.

        `read` raises BadAnswer for an unusable answer. If the answer is a stream of events, the Assembler from
        `assemble` joins them.

        Raises:
            ModelError: If there is no answer.
            EndpointAway: After an outage.
            AccessRefused: If the key is refused or its quota is empty.
            ContextExceeded: If the server reports that the prompt is too long.
        """
        gate = gate_of(self._base_url, self._api_key, name=self._base_url, user=id(self))
        with gate.holding_deadline():
            return await self._post(gate, path, _encode(body), read, assemble)

    async def _post(
        self,
        gate: Gate,
        path: str,
        content: bytes,
        read: Callable[[Any], T],
        assemble: Callable[[], Assembler] | None,
    ) -> T:
        request, tries, successes = object(), 0, gate.successes
        while True:
            try:
                async with gate.request(self._wait_outage_s, request):
                    with self._mask_key():
                        return await self._send(path, content, read, assemble)
            except RequestFailure as caught:
                failure = caught
            if failure.kind in (FailureKind.FINAL, FailureKind.REFUSED):
                raise failure.error
            # While no request succeeds, the fault may be the endpoint's. Otherwise it is this request's.
            own = gate.status.away_s is None or gate.successes != successes
            successes = gate.successes
            if failure.kind is FailureKind.BROKEN and (self._retries == 0 or own):
                tries += 1
                if tries > self._retries:
                    raise failure.error
                logger.info("%s; sending it again", failure.error)
                await anyio.sleep(_pause_s(tries))
            elif gate.has_been_away(self._wait_outage_s):
                raise gate.outage(failure) from failure.error

    async def aclose(self) -> None:
        """Close the connections of this event loop. The object can be used again afterwards."""
        client = self._client.get()
        self._client.set(None)
        forget(self._base_url, self._api_key, user=id(self))
        if client is not None:
            await client.close()

    @contextmanager
    def _mask_key(self) -> Iterator[None]:
        """Mask the key in failures: gateways quote the headers of a request that they refuse."""
        try:
            yield
        except RequestFailure as failure:
            mask_error(failure, self._secrets)
            mask_error(failure.error, self._secrets)
            raise

    async def _send(
        self, path: str, content: bytes, read: Callable[[Any], T], assemble: Callable[[], Assembler] | None
    ) -> T:
        import openai

        try:
            client = self._get_client()
        except Exception as error:
            # The environment names an unusable proxy or certificate.
            text = f"{self._name}: the client cannot be made: {type(error).__name__}: {error}"
            raise RequestFailure(FailureKind.FINAL, text, ModelError(text, cause=ErrorCause.CONFIG)) from error
        try:
            return read(await self._exchange(client, path, content, assemble))
        except TimeoutError as error:
            raise silence_failure(self._name, self._timeout_s, error) from error
        except openai.APIConnectionError as error:
            times = {"timeout_s": self._timeout_s, "connect_timeout_s": self._connect_timeout_s}
            raise connection_failure(self._name, error, **times) from error
        except openai.APIStatusError as error:
            raise status_failure(self._name, error) from error
        except openai.OpenAIError as error:
            raise answer_failure(self._name, str(error), error) from error
        except BadAnswer as error:
            raise answer_failure(self._name, str(error), error) from error

    async def _exchange(
        self, client: openai.AsyncOpenAI, path: str, content: bytes, assemble: Callable[[], Assembler] | None
    ) -> object:
        """Send a request and return its answer. It waits as long as pieces of the answer arrive."""
        with anyio.fail_after(self._timeout_s) as silence:

            def end_silence() -> None:
                # Not the obvious code: see docs/why-not-obvious.md ("One timer for a stream")
                if silence.deadline < (latest := anyio.current_time() + self._timeout_s) - self._timeout_s / 20:
                    silence.deadline = latest

            stream = await _post(client, path, content)
            try:
                kind = stream.response.headers.get("content-type", "")
                async with aclosing(_pieces(stream)) as pieces:
                    if assemble is not None and kind.startswith("text/event-stream"):
                        return await _assemble(pieces, assemble(), end_silence)
                    return _json(await _join(pieces, end_silence))
            finally:
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await stream.response.aclose()

    def _get_client(self) -> openai.AsyncOpenAI:
        import openai

        client = self._client.get()
        if client is None:
            timeout = openai.Timeout(self._timeout_s, connect=self._connect_timeout_s)
            settings: dict[str, Any] = {"base_url": self._base_url, "timeout": timeout, "max_retries": 0}
            if self._login:
                encoded = b64encode(self._login.encode()).decode("ascii")
                settings["default_headers"] = {"Authorization": f"Basic {encoded}"}
            if urlsplit(self._base_url).hostname in _LOOPBACK:
                # The proxies of the environment do not serve loopback addresses.
                settings["http_client"] = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=timeout)
            client = openai.AsyncOpenAI(api_key=self._api_key, **settings)
            self._client.set(client)
        return client


async def _pieces(stream: openai.AsyncStream[bytes]) -> AsyncGenerator[bytes]:
    try:
        async for piece in stream.response.aiter_bytes():
            yield piece
    except Exception as error:
        raise _connection_error(error, stream) from error


async def _join(pieces: AsyncIterator[bytes], end_silence: Callable[[], None]) -> bytes:
    """Return the whole answer. Some servers write blank lines until they begin it."""
    content = []
    async for piece in pieces:
        if not piece.isspace():
            end_silence()
        content.append(piece)
    return b"".join(content)


async def _assemble(pieces: AsyncIterator[bytes], answer: Assembler, end_silence: Callable[[], None]) -> object:
    """Return the answer of a stream.

    It reads on for a moment after the end: a connection that was read to its end can be reused, but some servers leave
    a stream open.
    """
    import openai

    decoder, ended, wrong = EventDecoder(), False, None

    def add_events(events: Iterable[str]) -> bool:
        for data in events:
            if data == _DONE:
                return True
            answer.add(event := _json(data))
            if answer.is_progress(event):
                end_silence()
        return False

    # Reading ends by cancellation, so that the client's generators end in order and not at garbage collection.
    with anyio.CancelScope() as rest:
        try:
            async for piece in pieces:
                if ended or wrong is not None:
                    continue
                try:
                    ended = add_events(decoder.feed(piece))
                except BadAnswer as error:
                    wrong = error
                    rest.cancel()
                if ended or answer.finished:
                    rest.deadline = min(rest.deadline, anyio.current_time() + (_REST_S if ended else _USAGE_S))
        except openai.APIConnectionError:
            # Some servers and proxies break the connection instead of closing it in order.
            if not (ended or answer.finished):
                raise
    if wrong is not None:
        raise wrong
    with suppress(BadAnswer) if answer.finished else nullcontext():
        ended = ended or add_events(decoder.finish())
    return answer.answer(ended=ended)


def _json(content: bytes | str) -> object:
    """Return the decoded JSON. Raise BadAnswer if it is invalid."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        head = content[:_EXCERPT_BYTES]
        begin = " ".join((head.decode("utf-8", "replace") if isinstance(head, bytes) else head).split())
        raise BadAnswer(f"it is not JSON: {begin or 'it is empty'}") from error


def _connection_error(error: Exception, stream: openai.AsyncStream[bytes]) -> openai.APIConnectionError:
    """Return the client's own error for an error of its HTTP library, which has changed over time."""
    import openai

    kind = openai.APITimeoutError if type(error).__name__.endswith("Timeout") else openai.APIConnectionError
    return kind(request=stream.response.request)


async def _post(client: openai.AsyncOpenAI, path: str, content: bytes) -> openai.AsyncStream[bytes]:
    """Send a request as bytes, and return the stream of the answer's bytes."""
    import openai

    kind = openai.AsyncStream[bytes]
    # Not the obvious code: see docs/why-not-obvious.md ("Requests and answers as bytes")
    if "content" in _parameters_of_post():
        return await client.post(path, cast_to=bytes, content=content, stream=True, stream_cls=kind)
    return await client.post(path, cast_to=bytes, body=content, stream=True, stream_cls=kind)


@cache
def _parameters_of_post() -> frozenset[str]:
    """Return the parameters of the client's `post`. Older clients have no `content`, and take bytes as `body`."""
    import openai

    return frozenset(inspect.signature(openai.AsyncOpenAI.post).parameters)


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"the request cannot be written as JSON: {error}", cause=ErrorCause.CONFIG) from error
    # Half of a surrogate pair cannot be sent; a model can write one as an escape.
    return text.encode("utf-8", "replace")


def _pause_s(tries: int) -> float:
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10))
    return longest * random.uniform(0.75, 1.25)


def _check_bounds(timeout_s: float, connect_timeout_s: float, retries: int, wait_outage_s: float) -> None:
    for name, value in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is a positive number of seconds, not {value!r}")
    if not wait_outage_s >= 0:
        raise ConfigError(f"wait_outage_s is 0 seconds or more, not {wait_outage_s!r}")
    if retries < 0:
        raise ConfigError(f"the number of retries is 0 or more, not {retries!r}")


def _check_url(url: str) -> None:
    """Raise ConfigError for a URL that cannot be connected to, before anything is started."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        whole = whole and not parts.query and not parts.fragment
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(
            f"base_url {re.split('[?#]', _split_login(url)[0])[0]!r} is not the URL of an endpoint, such as "
            "http://localhost:8000/v1" + (" (it has a query: a key belongs in api_key)" if "?" in url else "")
        )


def _split_login(url: str) -> tuple[str, str]:
    """Return a URL without user and password, and these as "user:password": clients log each URL as it is."""
    begin, _, host = url.rpartition("@")
    scheme, _, login = begin.partition("://")
    return (f"{scheme}://{host}", unquote(login)) if login else (url, "")
