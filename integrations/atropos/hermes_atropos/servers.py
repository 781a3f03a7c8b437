"""Models on the inference servers of atroposlib: token servers, or chat servers whose answers are encoded again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import anyio
import openai
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager

from hermes_agent import AccessRefused, Completion, ContextExceeded, Message, ModelError, ModelSession, get_renderer
from hermes_agent.deadline import Deadline, current_deadline
from hermes_agent.models.chat_answer import read_answer
from hermes_agent.models.chat_text import render_calls
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers import ParsedText, Parser, get_parser
from hermes_agent.parsers.base import Tools
from hermes_agent.tokens import ChatTemplate, Sample, TokenModel
from hermes_agent.tokens.samplers import LogprobsMode, exact_at, with_one_stop
from hermes_atropos.config import SandboxEnvConfig
from hermes_exec import ConfigError, ErrorCause

logger = logging.getLogger(__name__)

T = TypeVar("T")
ServerKind = Literal["openai", "vllm", "sglang", "tinker"]

LOGPROBS: Mapping[ServerKind, LogprobsMode] = {"vllm": "raw", "sglang": "temperature", "tinker": "raw"}
"""The distribution whose log-probabilities each server returns by default."""

_AWAY_STATUSES = frozenset({429, 502, 503, 504, 529})
_SHORTEST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_CHECK_S = 5.0
_NO_SUCH_METHOD = HTTPStatus.NOT_IMPLEMENTED
_LOG_INTERVAL_S = 60.0
_OPENAI_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("tool_choice", "parallel_tool_calls", "reasoning_effort", "response_format", "extra_body"),
    }
)


@dataclass
class _Member:
    """One of the inference servers. `away` is the last error of a server that cannot be reached, and `retry_at` the
    time from which a request may try it again.
    """

    api: APIServer
    checked: bool
    pending: int = 0
    away: BaseException | None = None
    pause_s: float = _SHORTEST_PAUSE_S
    retry_at: float = 0.0

    @property
    def url(self) -> str:
        """The address for messages."""
        return str(self.api.config.base_url)


class Servers:
    """The inference servers of an environment. A server that cannot be reached is left out and named, and its requests
    go to the others. Later requests try it again, at most one at a time.

    While all servers are away, requests wait for up to `wait_s` seconds, counted from the first failed request. After
    that, every request fails at once until one succeeds.
    """

    def __init__(self, manager: ServerManager, wait_s: float) -> None:
        self._wait_s = wait_s
        self._logged_at = -math.inf
        self._away_since: float | None = None
        # atroposlib's own check lets requests wait in silence for a server that is away.
        self._members = [_Member(api, checked=api.config.health_check) for api in manager.servers]
        for api in manager.servers:
            api.config.health_check = False

    async def ask(self, request: Callable[[APIServer], Awaitable[T]]) -> T:
        """Return the result of a request to the server that has the fewest. atroposlib tries each request up to three
        times.

        While all servers are unreachable, the deadline of the current episode is paused.

        Raises:
            ModelError: If the request fails, with the original cause, which atroposlib hides in a RetryError.
        """
        deadline = current_deadline()
        try:
            return await self._ask(request, deadline)
        finally:
            if deadline is not None:
                deadline.resume()

    async def _ask(self, request: Callable[[APIServer], Awaitable[T]], deadline: Deadline | None) -> T:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            member = self._choose()
            member.pending += 1
            try:
                with anyio.fail_after(self._longest_s):
                    if member.checked or len(self._members) > 1:
                        await _check(member)
                    answer = await request(member.api)
            except Exception as error:
                cause = innermost_error(error)
                if not _is_away(cause):
                    raise self._make_error(cause, member) from error
                self._leave_out(member, cause)
                if any(each.away is None for each in self._members):
                    continue
                now = time.monotonic()
                self._away_since = now if self._away_since is None else self._away_since
                if now - self._away_since + pause_s > self._wait_s:
                    raise self._make_error(cause, member) from error
                self._log_wait(cause, now)
                if deadline is not None:
                    deadline.hold()
            else:
                self._away_since = None
                self._use_again(member)
                return answer
            finally:
                member.pending -= 1
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _choose(self) -> _Member:
        """Return the server for a request: one that is away and due for a trial, else the one with the fewest requests,
        else the one whose trial is the longest ago.
        """
        now = time.monotonic()
        due = [member for member in self._members if member.away is not None and now >= member.retry_at]
        here = [member for member in self._members if member.away is None]
        if not due and here:
            return min(here, key=lambda member: member.pending)
        member = min(due or self._members, key=lambda member: member.retry_at)
        member.retry_at = now + member.pause_s
        return member

    def _leave_out(self, member: _Member, cause: BaseException) -> None:
        rest = sum(each.away is None for each in self._members if each is not member)
        if member.away is None and rest:
            logger.warning(
                "the inference server %s is left out until it answers (%s: %s); servers that answer: %d of %d",
                *(member.url, type(cause).__name__, cause, rest, len(self._members)),
            )
        member.pause_s = _SHORTEST_PAUSE_S if member.away is None else min(2 * member.pause_s, _LONGEST_PAUSE_S)
        member.away, member.retry_at = cause, time.monotonic() + member.pause_s

    def _use_again(self, member: _Member) -> None:
        if member.away is not None and len(self._members) > 1:
            logger.warning("the inference server %s answers again", member.url)
        member.away = None

    def _log_wait(self, cause: BaseException, now: float) -> None:
        """Log the wait once a minute, however many requests wait."""
        if now - self._logged_at > _LOG_INTERVAL_S:
            self._logged_at = now
            logger.warning("waiting up to %g s for %s", self._wait_s, self._make_error(cause))

    @property
    def _longest_s(self) -> float:
        """The longest time of a request, which waits in the server's queue too."""
        return self._wait_s + 3 * max(float(member.api.config.timeout) for member in self._members)

    def _make_error(self, cause: BaseException, member: _Member | None = None) -> ModelError:
        """Return the error of one server, or of all if each is away."""
        others = any(each.away is None for each in self._members)
        urls = member.url if member and others else ", ".join(each.url for each in self._members)
        status = getattr(cause, "status", None) or getattr(cause, "status_code", None)
        message = str(cause) or f"no answer within {self._longest_s:g} s"
        why = f"the inference server ({urls}): {type(cause).__name__}: {message}"
        if status in (401, 403):
            return AccessRefused(why, status=status)
        final = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
        return ModelError(why, cause=ErrorCause.CONFIG if final else ErrorCause.PROVIDER, status=status)


async def _check(member: _Member) -> None:
    """Raise ConnectionError unless the server answers within `_CHECK_S`: to `/health` if its health is to be checked,
    else to a connection. A request itself notices a host that is down only after its own timeout.
    """
    config = member.api.config
    parts = urlsplit(member.url)
    try:
        with anyio.fail_after(_CHECK_S):
            if member.checked and config.server_type != "openai":
                key = {"Authorization": f"Bearer {config.api_key}"}
                url = f"{member.url.replace('/v1', '')}/health"
                async with aiohttp.ClientSession() as session, session.get(url, headers=key) as response:
                    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR and response.status != _NO_SUCH_METHOD:
                        raise ConnectionError(f"/health answers {response.status}")
            elif parts.hostname and not (config.server_type == "openai" and parts.scheme in getproxies()):
                port = parts.port or (443 if parts.scheme == "https" else 80)
                await (await anyio.connect_tcp(parts.hostname, port)).aclose()
    except TimeoutError:
        raise ConnectionError(f"no answer within {_CHECK_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionError(str(error.__cause__ or error)) from error


def innermost_error(error: BaseException) -> BaseException:
    """Return the original error below the errors of the retries."""
    while hasattr(error, "last_attempt"):
        inner = error.last_attempt.exception()
        if inner is None:
            return error
        error = inner
    return error


def _is_away(cause: BaseException) -> bool:
    if isinstance(cause, aiohttp.ClientResponseError):
        return cause.status in _AWAY_STATUSES
    if isinstance(cause, openai.APIStatusError):
        return cause.status_code in _AWAY_STATUSES
    connection = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, ConnectionError)
    return isinstance(cause, connection) or type(cause) is openai.APIConnectionError


async def close_servers(manager: ServerManager) -> None:
    """Close the connections of the servers and stop their health checks."""
    for server in manager.servers:
        if server.check_task is not None:
            server.check_task.cancel()
        await server.openai.close()


class ServerSampler:
    """A `Sampler` of `hermes_agent.tokens` on the vLLM and SGLang servers of atroposlib.

    Their `tokens_and_logprobs_completion` returns (ids of the prompt, ids of each answer, their log-probabilities,
    finish reason of each).
    """

    def __init__(self, servers: Servers, kind: ServerKind) -> None:
        self._servers, self._kind = servers, kind

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sample:
        """See `Sampler.sample`."""
        wanted = {name: value for name, value in sampling.items() if value is not None}
        if self._kind == "tinker":
            wanted = with_one_stop(wanted)
        response = await self._servers.ask(
            lambda server: server.tokens_and_logprobs_completion(
                input_ids=list(ids), max_tokens=max_tokens, n=1, **wanted
            )
        )
        try:
            prompt, (answer,), (logprobs,), (reason,) = response
            finish = reason["type"] if isinstance(reason, dict) else reason
        except (TypeError, ValueError, KeyError) as error:
            raise ModelError(f"cannot read the inference server's answer: {error}") from error
        if list(prompt) != list(ids):
            raise ModelError(
                "atroposlib changed the prompt: it removes the second of two begin-of-text tokens. The chat template "
                "writes one, and the text has another",
                cause=ErrorCause.CONFIG,
            )
        return Sample(tuple(answer), tuple(logprobs), finish)


class ChatModel:
    """A model on a chat server. A session encodes each answer again, so that an episode is one sequence of ids; they
    are not the sampled ids and have no log-probabilities.
    """

    def __init__(
        self, servers: Servers, template: ChatTemplate, *, parser: str, context_tokens: int, model: str
    ) -> None:
        self.model = model
        self._servers, self._template = servers, template
        self._parser, self._context_tokens = parser, context_tokens

    def session(self, tools: Tools) -> ModelSession:
        """Return a new session for one episode with these tools."""
        return _ChatSession(self._servers, self._template, tools, self._parser, self._context_tokens)


class _ChatSession:
    """A `TokenSession` whose sampler asks the chat server to answer the messages behind the ids."""

    def __init__(
        self, servers: Servers, template: ChatTemplate, tools: Tools, parser: str, context_tokens: int
    ) -> None:
        self._servers, self._template, self._tools = servers, template, tools
        self._parse, self._render = get_parser(parser), get_renderer(parser)
        self._messages: Sequence[Message] = ()
        self._wanted: dict[str, Any] = {}
        self._answer = Completion("")
        self._session = TokenModel(self, template, parser=self._parse_answer, context_tokens=context_tokens).session(
            tools
        )

    async def complete(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """See `ModelSession.complete`."""
        self._messages = messages
        # Only for the request: the server counts the tokens of an answer differently.
        self._wanted = {name: sampling.pop(name, None) for name in ("max_tokens", "tool_choice")}
        completion = await self._session.complete(messages, **sampling)
        return replace(completion, provider_fields=self._answer.provider_fields)

    async def aclose(self) -> None:
        """Do nothing: the servers stay open for other sessions."""

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: Any) -> Sample:
        """Return the ids of the chat server's answer."""
        sampling.pop("stop_token_ids", None)
        limit = min(self._wanted["max_tokens"] or max_tokens, max_tokens)
        wanted = {**sampling, "tool_choice": self._wanted["tool_choice"] if self._tools else None}
        parameters = {name: value for name, value in wanted.items() if value is not None}
        more = {name: parameters.pop(name) for name in list(parameters) if name not in _OPENAI_PARAMETERS}
        if more:
            parameters["extra_body"] = {**parameters.get("extra_body", {}), **more}
        if self._tools:
            parameters["tools"] = list(self._tools)
        response = await self._servers.ask(
            lambda server: server.chat_completion(messages=list(self._messages), max_tokens=limit, n=1, **parameters)
        )
        try:
            answer = read_answer(response.model_dump(), lambda text: self._parse(text, self._tools))
        except BadAnswer as error:
            raise ModelError(f"cannot read the inference server's answer: {error}") from error
        encoded = self._template.answer(self._answer_text(answer))
        if len(encoded) > max_tokens:
            raise ContextExceeded(f"the answer has {len(encoded)} tokens, but only {max_tokens} fit")
        self._answer = answer
        return Sample(tuple(encoded), None, "length" if answer.finish_reason == "length" else "stop")

    def _answer_text(self, answer: Completion) -> str:
        """Return the answer as the text that a token model would have written."""
        thought = f"<think>\n{answer.reasoning}\n</think>\n\n" if answer.reasoning else ""
        calls = render_calls(answer.tool_calls, self._render) if answer.tool_calls else ""
        return thought + "\n".join(filter(None, (answer.content or "", calls)))

    def _parse_answer(self, _text: str, _tools: Tools) -> ParsedText:
        """Return the server's own parsed answer instead of parsing its encoded text."""
        answer = self._answer
        return ParsedText(answer.content, answer.reasoning, answer.tool_calls, problems=answer.problems)


def make_model(
    servers: Servers, kind: ServerKind, template: ChatTemplate, *, parser: str | Parser, context_tokens: int, name: str
) -> TokenModel | ChatModel:
    """Return the model of an environment. The prompt and answers of an episode have at most `context_tokens` ids
    together.
    """
    if kind == "openai":
        if not isinstance(parser, str):
            raise ConfigError(
                "tool_call_parser must be a name, because answers of a chat server are rewritten in its format"
            )
        return ChatModel(servers, template, parser=parser, context_tokens=context_tokens, model=name)
    sampler = ServerSampler(servers, kind)
    return TokenModel(sampler, template, parser=parser, context_tokens=context_tokens, model=name)


def validate_servers(servers: object, config: SandboxEnvConfig) -> list[APIServerConfig]:
    """Return the servers, with the environment's tokenizer for those that do not name one.

    Raises:
        ConfigError: If the servers do not fit together, the environment or atroposlib.
    """
    if not isinstance(servers, list) or not servers:
        raise ConfigError(
            "server_configs must be a list of APIServerConfig: atroposlib ignores the base_url of a single one and "
            "asks localhost:9004 to 9007"
        )
    checked = []
    for server in servers:
        if server.server_type != servers[0].server_type:
            raise ConfigError("all servers of an environment must have the same server_type")
        if server.server_type == "trl":
            raise ConfigError("atroposlib returns no token ids from a trl server: use vllm or sglang")
        if config.inference_server == "tinker" and server.server_type != "sglang":
            raise ConfigError("the server of tinker-atropos uses the sglang protocol: set --openai.server_type sglang")
        if config.inference_server not in ("auto", "tinker", server.server_type):
            raise ConfigError(
                f"inference_server {config.inference_server} contradicts server_type {server.server_type}"
            )
        if server.base_url and not server.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must be an address such as http://localhost:9001/v1, not {server.base_url!r}")
        if not server.api_key:
            raise ConfigError("api_key is empty, which the client refuses: set it to any text, such as x")
        if server.tokenizer_name not in ("none", config.tokenizer_name):
            raise ConfigError(
                f"the server's tokenizer is {server.tokenizer_name!r}, but the environment's is "
                f"{config.tokenizer_name!r}: the same ids mean different texts"
            )
        timeout = config.request_timeout_s or server.timeout
        checked.append(server.model_copy(update={"tokenizer_name": config.tokenizer_name, "timeout": timeout}))
    return checked


def check_logprobs(kind: ServerKind, config: SandboxEnvConfig) -> None:
    """Raise ConfigError if the log-probabilities that a server returns do not match its samples."""
    if kind == "openai":
        return
    mode, sampling = config.logprobs or LOGPROBS[kind], config.sampling_parameters
    if not exact_at(mode, sampling):
        raise ConfigError(
            f"a {kind} server returns {mode} log-probabilities, which do not match samples drawn with {sampling}, so "
            "the trainer's ratios would be wrong: sample with temperature 1 and without top_p and similar parameters, "
            "or start the server with processed log-probabilities and set --env.logprobs processed"
        )
