"""A model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import anyio
from anyio.lowlevel import RunVar

from hermes_agent.errors import ContextExceeded, ModelError
from hermes_agent.messages import Completion, Message, TokenUsage, ToolCall
from hermes_agent.parsers import get_parser
from hermes_exec.errors import ConfigError, ErrorCause

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageToolCallUnion

_LOG = logging.getLogger(__name__)
_NOT_STARTED = frozenset({408, 429, 502, 503, 529})
_CONFIG_STATUS = frozenset({400, 401, 403, 404, 405, 415, 422})
_CONTEXT_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "context length",
    "context size",
    "context window",
    "prompt is too long",
    "too many tokens",
)
_KNOWN = frozenset(
    {
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "stop",
        "tool_choice",
        "parallel_tool_calls",
    }
) | frozenset(
    {
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "reasoning_effort",
        "response_format",
        "user",
    }
)


class OpenAIModel:
    """Completions from `base_url` (None: OpenAI's own), with the official `openai` package (extra `agent`).

    `api_key` is sent as bearer token; endpoints without one take any text. `timeout_s` bounds one request (default 600
    s), `connect_timeout_s` its connection (default 10 s). Up to `max_retries` (default 4) further tries, with growing
    pauses or those that the server asks for, follow failures that show that no completion was begun: no connection, and
    the HTTP statuses 408, 429, 502, 503 and 529. Everything else is a ModelError at once: a completion that may be
    under way is never paid for twice. `parser` names the format of calls in plain text (`hermes`), for endpoints that
    hand through what the model wrote; None (default) takes only structured calls. Sampling parameters that the
    interface does not know go into `extra_body`; `sampling` gives defaults for every request. Raises ConfigError for an
    invalid `base_url` or bound, and when `openai` is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str = "none",
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        max_retries: int = 4,
        parser: str | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
            if not value > 0 or math.isinf(value):
                raise ConfigError(f"{name} is a positive number of seconds, not {value!r}")
        if importlib.util.find_spec("openai") is None:
            raise ConfigError("OpenAIModel needs the package openai; install it: pip install 'hermes-exec[agent]'")
        if base_url is not None:
            _check_endpoint(base_url)
        if max_retries < 0:
            raise ConfigError(f"max_retries is at least 0, not {max_retries}")
        self.model = model
        self._base_url, self._api_key = base_url, api_key
        self._timeout_s, self._connect_timeout_s, self._max_retries = timeout_s, connect_timeout_s, max_retries
        self._parse = get_parser(parser) if parser else None
        self._sampling = dict(sampling or {})
        # Connections belong to the event loop that made them.
        self._client: RunVar[openai.AsyncOpenAI | None] = RunVar(f"client {id(self)}", None)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """One completion; see `Model.complete`."""
        request = self._request(messages, tools, {**self._sampling, **sampling})
        for attempt in range(self._max_retries + 1):
            try:
                return await self._once(request)
            except _Again as again:
                if attempt == self._max_retries:
                    raise again.error from again.error.__cause__
                pause_s = (
                    again.after_s
                    if again.after_s is not None
                    else min(30.0, 0.5 * 2**attempt) * random.uniform(0.75, 1.25)
                )
                _LOG.info("%s; next try in %.1f s", again.error, pause_s)
                await anyio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can be used again afterwards."""
        client = self._client.get()
        self._client.set(None)
        if client is not None:
            await client.close()

    def _request(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        given = {name: value for name, value in sampling.items() if value is not None}
        extra = {**given.pop("extra_body", {}), **{name: given.pop(name) for name in list(given) if name not in _KNOWN}}
        if tools:
            given["tools"] = list(tools)
        else:
            given.pop("tool_choice", None)
        if extra:
            given["extra_body"] = extra
        return {"model": self.model, "messages": list(messages), **given}

    async def _once(self, request: Mapping[str, Any]) -> Completion:
        import openai

        client = self._client.get()
        if client is None:
            timeout = openai.Timeout(self._timeout_s, connect=self._connect_timeout_s)
            client = openai.AsyncOpenAI(api_key=self._api_key, base_url=self._base_url, timeout=timeout, max_retries=0)
            self._client.set(client)
        try:
            with anyio.fail_after(self._timeout_s):
                answer = await client.chat.completions.create(**request)
        except TimeoutError as error:
            raise ModelError(f"{self.model}: no answer within {self._timeout_s:g} s") from error
        except openai.APITimeoutError as error:
            self._timed_out(error)
        except openai.APIConnectionError as error:
            host = f"{client.base_url.scheme}://{client.base_url.netloc.decode()}"
            failure = ModelError(f"{self.model}: no connection to {host}: {error.__cause__ or error}")
            failure.__cause__ = error
            if type(error.__cause__).__name__ == "ConnectError":
                raise _Again(failure, None) from error
            raise failure from error
        except openai.APIStatusError as error:
            self._refused(error)
        except (openai.OpenAIError, json.JSONDecodeError) as error:
            raise ModelError(f"{self.model}: the endpoint's answer cannot be read: {error}") from error
        return self._completion(answer)

    def _timed_out(self, error: openai.APITimeoutError) -> NoReturn:
        failure = ModelError(f"{self.model}: no answer within {self._timeout_s:g} s")
        failure.__cause__ = error
        if type(error.__cause__).__name__ in {"ConnectTimeout", "PoolTimeout"}:
            raise _Again(
                ModelError(f"{self.model}: no connection within {self._connect_timeout_s:g} s"), None
            ) from error
        raise failure from error

    def _refused(self, error: openai.APIStatusError) -> NoReturn:
        text = f"{self.model}: HTTP {error.status_code}: {error.message}"
        said = f"{error.code or ''} {error.message} {error.body or ''}".lower()
        if error.status_code in {400, 413, 422, 500} and any(words in said for words in _CONTEXT_WORDS):
            raise ContextExceeded(text, status=error.status_code) from error
        cause = ErrorCause.CONFIG if error.status_code in _CONFIG_STATUS else ErrorCause.PROVIDER
        failure = ModelError(text, cause=cause, status=error.status_code)
        failure.__cause__ = error
        if error.status_code in _NOT_STARTED and error.code != "insufficient_quota":
            raise _Again(failure, _retry_after_s(error.response.headers.get("retry-after"))) from error
        raise failure from error

    def _completion(self, answer: ChatCompletion) -> Completion:
        choices = getattr(answer, "choices", None)
        if not choices or getattr(choices[0], "message", None) is None:
            raise ModelError(f"{self.model}: the endpoint answered without a choice")
        message, finish = choices[0].message, choices[0].finish_reason
        calls = tuple(_call(call, index) for index, call in enumerate(message.tool_calls or ()))
        content, reasoning = message.content, _reasoning(message)
        if self._parse is not None and not calls and content:
            parsed = self._parse(content)
            content, calls, reasoning = parsed.content, tuple(parsed.calls), reasoning or parsed.reasoning
        usage = getattr(answer, "usage", None)
        tokens = TokenUsage(getattr(usage, "prompt_tokens", 0) or 0, getattr(usage, "completion_tokens", 0) or 0, 1)
        return Completion(content, calls, reasoning, "length" if finish == "length" else "stop", tokens)


def _check_endpoint(url: str) -> None:
    """Raise ConfigError for a URL that cannot be connected to, before anything is started."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(f"base_url {url!r} is not the URL of an endpoint, such as http://localhost:8000/v1")


class _Again(Exception):
    """The failure is safe to try again, after the pause that the server asked for, if any."""

    def __init__(self, error: ModelError, after_s: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


def _retry_after_s(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return min(seconds, 60.0) if seconds >= 0 else None


def _call(call: ChatCompletionMessageToolCallUnion, index: int) -> ToolCall:
    function = getattr(call, "function", None)
    name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
    error = None if name else "This tool call has no name. Name one of the tools"
    return ToolCall(getattr(call, "id", None) or f"call_{index}", name or "", arguments, error)


def _reasoning(message: ChatCompletionMessage) -> str | None:
    """The first of `reasoning_content`, `reasoning` and the texts of `reasoning_details`: endpoints differ."""
    for name in ("reasoning_content", "reasoning"):
        text = getattr(message, name, None)
        if isinstance(text, str) and text.strip():
            return text
    details = getattr(message, "reasoning_details", None) or ()
    texts = [detail.get("text") for detail in details if isinstance(detail, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text) or None
