"""What a failed request to an endpoint means: whether it may be sent again, and what the caller is told."""

from __future__ import annotations

import email.utils
import math
import ssl
import time
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

from hermes_agent.errors import AccessRefused, ContextExceeded, ModelError
from hermes_exec.errors import ErrorCause

if TYPE_CHECKING:
    import openai

# Those of 520 to 523 are Cloudflare's: its own server could not be reached.
_AWAY = frozenset({408, 502, 503, 521, 522, 523, 529})
_CONFIG = frozenset({400, 401, 402, 403, 404, 405, 410, 413, 414, 415, 422, 501})
_CONTEXT = frozenset({400, 413, 422, 500})
_CONTEXT_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "context length",
    "context size",
    "context window",
    "prompt is too long",
    "too many tokens",
)
# Of one prompt, with the status of a refused key: so does OpenRouter.
_MODERATION_WORDS = ("moderation", "flagged")
_LONGEST_REASON = 2000
_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


class Kind(Enum):
    """What is to be done about a failed request."""

    THROTTLED = auto()
    """It came too soon: again, later."""
    AWAY = auto()
    """Nothing was begun: again, once the endpoint is back."""
    BROKEN = auto()
    """A completion may have been begun, and was lost: again, some times."""
    REFUSED = auto()
    """No request with this key has a chance."""
    FINAL = auto()
    """This request has none."""


class Failure(Exception):
    """Raised by one request that gave nothing: what is to be done, why, and the error for the caller. `retry_after_s`
    is when the endpoint wants the next request, where it says so.
    """

    def __init__(self, kind: Kind, reason: str, error: ModelError, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.kind, self.error, self.retry_after_s = kind, error, retry_after_s

    @property
    def reason(self) -> str:
        """Why nothing came."""
        return str(self)


def unusable(name: str, reason: str, cause: Exception | None = None) -> Failure:
    """Of an answer that is none."""
    return _failure(Kind.BROKEN, name, f"the endpoint's answer cannot be used: {reason}", cause)


def silent(name: str, timeout_s: float, cause: Exception | None = None) -> Failure:
    """Of a request whose answer did not come, or stopped, although there was a connection."""
    return _failure(Kind.BROKEN, name, f"no piece of an answer within {timeout_s:g} s", cause)


def lost(name: str, error: openai.APIConnectionError, *, timeout_s: float, connect_timeout_s: float) -> Failure:
    """Of a request that the client gave up."""
    import openai

    below = error.__cause__
    no_connection = type(below).__name__ in _NOT_CONNECTED
    if isinstance(error, openai.APITimeoutError):
        if not no_connection:
            return silent(name, timeout_s, error)
        return _failure(Kind.AWAY, name, f"no connection within {connect_timeout_s:g} s", error)
    chain = list(_chain(error))
    why = next(filter(None, map(str, chain[1:])), type(below).__name__)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in chain):
        return _failure(Kind.FINAL, name, f"no connection: {why}", error, ErrorCause.CONFIG)
    if no_connection:
        return _failure(Kind.AWAY, name, f"no connection: {why}", error)
    return _failure(Kind.BROKEN, name, f"the connection broke: {why}", error)


def refused(name: str, error: openai.APIStatusError) -> Failure:
    """Of a request that was answered with an HTTP status other than success."""
    status = error.status_code
    reason = f"HTTP {status}: {' '.join(_message(error).split())[:_LONGEST_REASON]}"
    said = f"{error.code or ''} {error.message} {error.body or ''}".lower()
    if status in _CONTEXT and any(words in said for words in _CONTEXT_WORDS):
        return _caused(Failure(Kind.FINAL, reason, ContextExceeded(f"{name}: {reason}", status=status)), error)
    if status == 403 and any(words in said for words in _MODERATION_WORDS):
        return _caused(Failure(Kind.FINAL, reason, ModelError(f"{name}: {reason}", status=status)), error)
    # A 403 may be about this prompt or this model alone: gateways look into what is sent.
    if status in {401, 402} or (status == 429 and "insufficient_quota" in (error.code, error.type)):
        return _caused(Failure(Kind.REFUSED, reason, AccessRefused(f"{name}: {reason}", status=status)), error)
    pause_s = retry_after_s(error.response.headers)
    told = ModelError(
        f"{name}: {reason}",
        cause=ErrorCause.CONFIG if status in _CONFIG else ErrorCause.PROVIDER,
        status=status,
    )
    return _caused(Failure(_kind(status, pause_s), reason, told, pause_s), error)


def retry_after_s(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that the headers of an answer ask to wait: `retry-after-ms`, or `retry-after` as seconds or as a date.
    None where there are none that make sense.
    """
    given = headers.get("retry-after", "")
    try:
        seconds = float(headers.get("retry-after-ms", "")) / 1000
    except ValueError:
        try:
            seconds = float(given)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(given).timestamp() - (time.time() if now is None else now)
            except (ValueError, OverflowError):
                return None
            seconds = max(0.0, seconds)
    return seconds if 0 <= seconds < math.inf else None


def _kind(status: int, pause_s: float | None) -> Kind:
    if status == 429 or (status in {503, 529} and pause_s is not None):
        return Kind.THROTTLED
    if status in _AWAY:
        return Kind.AWAY
    return Kind.BROKEN if status >= 500 and status not in _CONFIG else Kind.FINAL


def _failure(
    kind: Kind, name: str, reason: str, cause: Exception | None, error_cause: ErrorCause = ErrorCause.PROVIDER
) -> Failure:
    return _caused(Failure(kind, reason, ModelError(f"{name}: {reason}", cause=error_cause)), cause)


def _caused(failure: Failure, cause: Exception | None) -> Failure:
    failure.error.__cause__ = cause
    return failure


def _message(error: openai.APIStatusError) -> str:
    """What the endpoint says; clients put it into different words."""
    said = error.body.get("message") if isinstance(error.body, dict) else None
    return (
        said
        if isinstance(said, str) and said
        else str(error.message).removeprefix(f"Error code: {error.status_code} - ")
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
