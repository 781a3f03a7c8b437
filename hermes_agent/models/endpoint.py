"""Requests to a model server: queued with all others to it, and sent again if that may help."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import random
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import anyio
from anyio.lowlevel import RunVar

from hermes_agent.errors import ModelError
from hermes_agent.models.answer_body import Assembler, BadAnswer, Silence, read_body
from hermes_agent.models.failures import (
    FailureKind,
    RefusedRequest,
    RequestFailure,
    answer_failure,
    connection_failure,
    silence_failure,
    status_failure,
)
from hermes_agent.models.gate import EndpointStatus, Gate, ShouldMove, find_gate, forget, gate_of, status_of
from hermes_agent.models.http.encodings import BadBody
from hermes_exec.errors import ConfigError, ErrorCause
from hermes_exec.redact import mask_error, spellings

if TYPE_CHECKING:
    from hermes_agent.models.http.client import HttpClient

OPENAI_URL, NO_KEY = "https://api.openai.com/v1", "none"
logger = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_REFUSAL_BYTES = 1 << 20
# A shorter key is a word such as `EMPTY`, not a secret, and may be a part of other words.
_SHORTEST_KEY = 8
_CLOSE_S = 1.0
T = TypeVar("T")

__all__ = ["Assembler", "BadAnswer", "Endpoint", "EndpointStatus"]


class Endpoint:
    """Sends requests to a server over HTTP.

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
        ConfigError: If the URL or a bound is invalid, or `httpcore2` is not installed.
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
        if importlib.util.find_spec("httpcore2") is None:
            raise ConfigError("models behind an endpoint need the package httpcore2: pip install 'hermes-exec[agent]'")
        if base_url is None and api_key == NO_KEY:
            raise ConfigError("OpenAI's own endpoint needs an api_key; for another one give its base_url")
        if not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
            raise ConfigError(
                "api_key has a character that no HTTP header can hold, such as a line break: remove it "
                "(a key from a file often ends with one)"
            )
        self._base_url, self._login = _split_login(base_url or OPENAI_URL)
        self._api_key = api_key
        self._secrets = spellings(secret for secret in (api_key, self._login) if len(secret) >= _SHORTEST_KEY)
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._retries, self._wait_outage_s = retries, wait_outage_s
        self._name = name or self._base_url
        self.should_move: ShouldMove | None = None
        """Whether requests that wait during an outage should fail with EndpointAway, to be sent to another server."""
        # Connections belong to the event loop that opened them.
        self._client: RunVar[HttpClient | None] = RunVar(f"client {id(self)}", None)

    @property
    def base_url(self) -> str:
        """The URL of the server, without user and password."""
        return self._base_url

    @property
    def status(self) -> EndpointStatus:
        """The state of the endpoint, for all its users in this event loop."""
        return status_of(self._base_url, self._api_key)

    def move_waiting(self) -> None:
        """Check `should_move` for the requests that wait."""
        gate = find_gate(self._base_url, self._api_key)
        if gate is not None:
            gate.move_waiting()

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
                async with gate.request(self._wait_outage_s, request, self.should_move):
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
            elif gate.has_been_away(self._wait_outage_s) or (self.should_move is not None and self.should_move()):
                raise gate.outage(failure) from failure.error

    async def aclose(self) -> None:
        """Close the connections of this event loop. The object can be used again afterwards."""
        client = self._client.get()
        self._client.set(None)
        forget(self._base_url, self._api_key, user=id(self))
        if client is not None:
            await client.aclose()

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
        from hermes_agent.models.http.client import HTTP_ERRORS
        from hermes_agent.models.http.environment import UnusableEnvironment

        try:
            return read(await self._exchange(path, content, assemble))
        except TimeoutError as error:
            raise silence_failure(self._name, self._timeout_s, error) from error
        except HTTP_ERRORS as error:
            raise connection_failure(self._name, error, self._connect_timeout_s) from error
        except UnusableEnvironment as error:
            text = f"{self._name}: {error}"
            raise RequestFailure(FailureKind.FINAL, text, ModelError(text, cause=ErrorCause.CONFIG)) from error
        except (BadAnswer, BadBody) as error:
            raise answer_failure(self._name, str(error), error) from error

    async def _exchange(self, path: str, content: bytes, assemble: Callable[[], Assembler] | None) -> object:
        """Send a request and return its answer. It waits as long as pieces of the answer arrive."""
        with anyio.fail_after(self._timeout_s) as scope:
            answer = await self._get_client().post(path, content)
            try:
                if not 200 <= answer.status < 300:
                    content = await answer.read_some(_REFUSAL_BYTES)
                    refusal = RefusedRequest(answer.status, answer.reason, answer.headers, content)
                    raise status_failure(self._name, refusal)
                return await read_body(answer, Silence(scope, self._timeout_s), assemble)
            finally:
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await answer.aclose()

    def _get_client(self) -> HttpClient:
        from hermes_agent.models.http.client import HttpClient

        client = self._client.get()
        if client is None:
            authorization = f"Bearer {self._api_key}" if self._api_key else ""
            if self._login:
                authorization = f"Basic {b64encode(self._login.encode()).decode('ascii')}"
            client = HttpClient(self._base_url, authorization=authorization, connect_timeout_s=self._connect_timeout_s)
            self._client.set(client)
        return client


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
        (parts.hostname or "").encode("idna")
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
