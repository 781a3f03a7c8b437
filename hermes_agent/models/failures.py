"""Classifies failed requests to an endpoint: whether to send them again, and the error for the caller."""

from __future__ import annotations

import email.utils
import html
import json
import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from hermes_agent.errors import AccessRefused, ContentFiltered, ContextExceeded, ModelError
from hermes_exec.errors import ErrorCause

# 520 to 523 are Cloudflare's: its own server could not be reached.
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
    "exceed context limit",  # Anthropic
    "input is too long for requested model",  # Bedrock
    "range of input length",  # DashScope
    "exceeds the maximum number of tokens",  # Gemini
    "exceeded model token limit",  # Moonshot
    "`inputs` tokens + `max_new_tokens` must be",  # TGI
    "longer than the maximum model length",  # vLLM
    "maximum prompt length",  # xAI
    "prompt exceeds max length",  # Z.ai
)
# Azure, Moonshot; OpenAI; DashScope.
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "data_inspection_failed"})
# About one prompt: OpenAI and DeepSeek; OpenRouter, with the status of a refused key.
_FILTER_WORDS = {400: ("flagged as potentially violating", "content exists risk"), 403: ("moderation", "flagged")}
# Anthropic, with the status of an invalid request.
_NO_CREDIT_WORDS = "credit balance is too low"
# Groq, about a call that the model wrote.
_BROKEN_CALL = "tool_use_failed"
_LONGEST_REASON = 2000
_MESSAGE_FIELDS = ("message", "error", "detail", "errors")
_MARKUP = re.compile(r"(?si)<(style|script)\b.*?</\1>|<[^<>]*>")
_LONGEST_PAGE = 20_000
_CHARSET = re.compile(r"charset=[\"']?([^\s\"';]+)", re.IGNORECASE)


class FailureKind(Enum):
    """The reaction to a failed request."""

    THROTTLED = auto()
    """It came too soon: send it again, later."""
    AWAY = auto()
    """Nothing was started: send it again once the endpoint is back."""
    BROKEN = auto()
    """A completion may have started, and was lost: send it again, a few times."""
    REFUSED = auto()
    """No request with this key can succeed."""
    FINAL = auto()
    """This request cannot succeed."""


class RequestFailure(Exception):
    """Raised by one request without an answer: the reaction, the reason, and the error for the caller.

    `retry_after_s` is the pause that the endpoint requests, if any.
    """

    def __init__(self, kind: FailureKind, reason: str, error: ModelError, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.kind, self.error, self.retry_after_s = kind, error, retry_after_s

    @property
    def reason(self) -> str:
        """The reason of the failure."""
        return str(self)


def answer_failure(name: str, reason: str, cause: Exception | None = None) -> RequestFailure:
    """Return the failure of a request with an unusable answer."""
    return _failure(FailureKind.BROKEN, name, f"the endpoint's answer cannot be used: {reason}", cause)


def silence_failure(name: str, timeout_s: float, cause: Exception | None = None) -> RequestFailure:
    """Return the failure of a request whose answer did not come, or stopped, although there was a connection."""
    return _failure(FailureKind.BROKEN, name, f"no piece of an answer within {timeout_s:g} s", cause)


def connection_failure(name: str, error: Exception, connect_timeout_s: float) -> RequestFailure:
    """Return the failure of a request that the client gave up."""
    import httpcore2

    if isinstance(error, httpcore2.ConnectTimeout):
        return _failure(FailureKind.AWAY, name, f"no connection within {connect_timeout_s:g} s", error)
    chain = list(_chain(error))
    why = next(filter(None, map(str, chain)), type(error).__name__)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in chain):
        return _failure(FailureKind.FINAL, name, f"no connection: {why}", error, ErrorCause.CONFIG)
    if isinstance(error, httpcore2.ConnectError):
        return _failure(FailureKind.AWAY, name, f"no connection: {why}", error)
    return _failure(FailureKind.BROKEN, name, f"the connection broke: {why}", error)


class RefusedRequest(NamedTuple):
    """An answer with an HTTP status other than success. `headers` have names in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.content.decode(charset[1] if charset else "utf-8", "replace").strip()
        except LookupError:
            return self.content.decode("utf-8", "replace").strip()


def status_failure(name: str, refusal: RefusedRequest) -> RequestFailure:
    """Return the failure of a request that was answered with an HTTP status other than success."""
    status, text = refusal.status, refusal.text
    error = _read_error(text)
    fields = error if isinstance(error, Mapping) else {}
    code, kind = fields.get("code"), fields.get("type")
    message = " ".join(_message(error, text).split())[:_LONGEST_REASON]
    reason = f"HTTP {status}: {message or refusal.reason or 'no text'}"
    details = f"{code or ''} {error or ''}".lower()
    if status in _CONTEXT and any(words in details for words in _CONTEXT_WORDS):
        return RequestFailure(FailureKind.FINAL, reason, ContextExceeded(f"{name}: {reason}", status=status))
    if {str(code), str(kind)} & _FILTER_CODES or any(words in details for words in _FILTER_WORDS.get(status, ())):
        return RequestFailure(FailureKind.FINAL, reason, ContentFiltered(f"{name}: {reason}", status=status))
    if code == _BROKEN_CALL:
        return RequestFailure(FailureKind.BROKEN, reason, ModelError(f"{name}: {reason}", status=status))
    # A 403 may be about this prompt or this model alone, because gateways inspect requests.
    no_credit = status == 400 and _NO_CREDIT_WORDS in details
    if status in {401, 402} or no_credit or (status == 429 and "insufficient_quota" in (code, kind)):
        return RequestFailure(FailureKind.REFUSED, reason, AccessRefused(f"{name}: {reason}", status=status))
    pause_s = retry_after_s(refusal.headers)
    cause = ErrorCause.CONFIG if status in _CONFIG else ErrorCause.PROVIDER
    error_of_caller = ModelError(f"{name}: {reason}", cause=cause, status=status)
    return RequestFailure(_kind(status, pause_s), reason, error_of_caller, pause_s)


def retry_after_s(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that the headers of an answer ask to wait.

    They are in `retry-after-ms`, or in `retry-after` as seconds or as a date. None if neither is valid.
    """
    header = headers.get("retry-after", "")
    try:
        seconds = float(headers.get("retry-after-ms", "")) / 1000
    except ValueError:
        try:
            seconds = float(header)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(header).timestamp() - (time.time() if now is None else now)
            except (ValueError, OverflowError):
                return None
            seconds = max(0.0, seconds)
    return seconds if 0 <= seconds < math.inf else None


def _kind(status: int, pause_s: float | None) -> FailureKind:
    if status == 429 or (status in {503, 529} and pause_s is not None):
        return FailureKind.THROTTLED
    if status in _AWAY:
        return FailureKind.AWAY
    return FailureKind.BROKEN if status >= 500 and status not in _CONFIG else FailureKind.FINAL


def _failure(
    kind: FailureKind, name: str, reason: str, cause: Exception | None, error_cause: ErrorCause = ErrorCause.PROVIDER
) -> RequestFailure:
    failure = RequestFailure(kind, reason, ModelError(f"{name}: {reason}", cause=error_cause))
    failure.error.__cause__ = cause
    return failure


def _read_error(text: str) -> object:
    """Return the error in the body of an answer: the field `error` of its JSON, the JSON, or the text."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return body.get("error", body) if isinstance(body, dict) else body


def _message(error: object, text: str) -> str:
    """Return the endpoint's message, from a field of one of several names, or else the whole body."""
    message = error
    for _ in _MESSAGE_FIELDS:
        if isinstance(message, list) and len(message) == 1:
            message = message[0]
        elif isinstance(message, Mapping):
            message = next((message[name] for name in _MESSAGE_FIELDS if message.get(name)), message)
    found = message if isinstance(message, str) else "" if error is None else text
    if found.startswith("<"):
        found = html.unescape(_MARKUP.sub(" ", found[:_LONGEST_PAGE])).strip() or found
    return found + _message_of_provider(error)


def _message_of_provider(body: object) -> str:
    """Return the message of a provider behind a gateway. OpenRouter's own message only reports an error."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f" ({raw})" if raw else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
