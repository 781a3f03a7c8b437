"""Models behind the inference servers of atroposlib: on token ids, or chat servers whose answers are encoded anew."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import aiohttp
import anyio
import openai
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManager

from hermes_agent import AccessRefused, Completion, ContextExceeded, Message, ModelError, ModelSession, get_renderer
from hermes_agent.deadline import Deadline, current_deadline
from hermes_agent.models.chat_answer import read_answer
from hermes_agent.models.chat_text import written
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers import Parsed, Parser, get_parser
from hermes_agent.parsers.base import Tools
from hermes_agent.tokens import ChatTemplate, Sampled, TokenModel, TokenSession
from hermes_agent.tokens.samplers import LogprobsMode, exact_at, with_one_stop
from hermes_atropos.config import SandboxEnvConfig
from hermes_exec import ConfigError, ErrorCause

logger = logging.getLogger(__name__)

T = TypeVar("T")
ServerKind = Literal["openai", "vllm", "sglang", "tinker"]

LOGPROBS: Mapping[ServerKind, LogprobsMode] = {"vllm": "raw", "sglang": "temperature", "tinker": "raw"}
"""Of which distribution each server gives log-probabilities as it starts by itself."""

_AWAY_STATUSES = frozenset({429, 502, 503, 504, 529})
_LONGEST_PAUSE_S = 10.0
_LOG_INTERVAL_S = 60.0
_OPENAI_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("tool_choice", "parallel_tool_calls", "reasoning_effort", "response_format", "extra_body"),
    }
)


class Servers:
    """The servers of an environment. A server that cannot be reached is waited for up to `wait_s` seconds from when the
    first request found it so; after these every request fails at once, until one succeeds.
    """

    def __init__(self, manager: ServerManager, wait_s: float) -> None:
        self.manager, self._wait_s = manager, wait_s
        self._logged_at = -math.inf
        self._away_since: float | None = None

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """What a request to them gives. atroposlib tries each up to three times.

        The deadline of the episode that asks stands still while they are away. Raises ModelError, with what was wrong
        in the end: atroposlib hides it in a RetryError.
        """
        deadline = current_deadline()
        try:
            return await self._ask(request, deadline)
        finally:
            if deadline is not None:
                deadline.resume()

    async def _ask(self, request: Callable[[], Awaitable[T]], deadline: Deadline | None) -> T:
        pause_s = 0.5
        while True:
            try:
                with anyio.fail_after(self._longest_s):
                    answer = await request()
            except Exception as error:
                cause = innermost_error(error)
                now = time.monotonic()
                if not _is_away(cause):
                    raise self._make_error(cause) from error
                self._away_since = now if self._away_since is None else self._away_since
                if now - self._away_since + pause_s > self._wait_s:
                    raise self._make_error(cause) from error
                self._log_wait(cause, now)
                if deadline is not None:
                    deadline.hold()
            else:
                self._away_since = None
                return answer
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _log_wait(self, cause: BaseException, now: float) -> None:
        """Once a minute, however many requests wait."""
        if now - self._logged_at > _LOG_INTERVAL_S:
            self._logged_at = now
            logger.warning("waiting up to %g s for %s", self._wait_s, self._make_error(cause))

    @property
    def _longest_s(self) -> float:
        """Also a server that says it is not healthy is not waited for without end."""
        return self._wait_s + 3 * max(float(server.config.timeout) for server in self.manager.servers)

    def _make_error(self, cause: BaseException) -> ModelError:
        urls = ", ".join(str(server.config.base_url) for server in self.manager.servers)
        status = getattr(cause, "status", None) or getattr(cause, "status_code", None)
        message = str(cause) or f"no answer within {self._longest_s:g} s"
        why = f"the inference server ({urls}): {type(cause).__name__}: {message}"
        if status in (401, 403):
            return AccessRefused(why, status=status)
        final = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
        return ModelError(why, cause=ErrorCause.CONFIG if final else ErrorCause.PROVIDER, status=status)


def innermost_error(error: BaseException) -> BaseException:
    """What was wrong, below the errors of the tries."""
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
    """Close the connections of servers, and end their probes of health."""
    for server in manager.servers:
        if server.check_task is not None:
            server.check_task.cancel()
        await server.openai.close()


class ServerSampler:
    """A `Sampler` of `hermes_agent.tokens` over the vLLM and SGLang servers of atroposlib.

    Its `tokens_and_logprobs_completion` gives (ids of the prompt, ids of each answer, their log-probabilities, why each
    ended).
    """

    def __init__(self, servers: Servers, kind: ServerKind) -> None:
        self._servers, self._kind = servers, kind

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: object) -> Sampled:
        """See `Sampler.sample`."""
        wanted = {name: value for name, value in sampling.items() if value is not None}
        if self._kind == "tinker":
            wanted = with_one_stop(wanted)
        manager = self._servers.manager
        response = await self._servers.ask(
            lambda: manager.tokens_and_logprobs_completion(input_ids=list(ids), max_tokens=max_tokens, n=1, **wanted)
        )
        try:
            prompt, (answer,), (logprobs,), (reason,) = response
            finish = reason["type"] if isinstance(reason, dict) else reason
        except (TypeError, ValueError, KeyError) as error:
            raise ModelError(f"the inference server's answer cannot be used: {error}") from error
        if list(prompt) != list(ids):
            raise ModelError(
                "atroposlib did not send the prompt as it was: it cuts the second of two tokens that begin a text; the "
                "chat template writes one, and the text has another",
                cause=ErrorCause.CONFIG,
            )
        return Sampled(tuple(answer), tuple(logprobs), finish)


class ChatModel:
    """A model behind a chat server: a session encodes what was answered, so that an episode is one sequence of ids, but
    not of those that were sampled, and without log-probabilities.
    """

    def __init__(
        self, servers: Servers, template: ChatTemplate, *, parser: str, context_tokens: int, model: str
    ) -> None:
        self.model = model
        self._servers, self._template = servers, template
        self._parser, self._context_tokens = parser, context_tokens

    def session(self, tools: Tools) -> ModelSession:
        """A new session, for one episode with these tools."""
        return _ChatSession(self._servers, self._template, tools, self._parser, self._context_tokens)


class _ChatSession:
    """A `TokenSession` whose sampler asks the chat server for the messages behind the ids."""

    def __init__(
        self, servers: Servers, template: ChatTemplate, tools: Tools, parser: str, context_tokens: int
    ) -> None:
        self._servers, self._template, self._tools = servers, template, tools
        self._parse, self._render = get_parser(parser), get_renderer(parser)
        self._messages: Sequence[Message] = ()
        self._wanted: dict[str, Any] = {}
        self._answer = Completion("")
        self._session = TokenSession(self, template, tools, parser=self._parse_answer, context_tokens=context_tokens)

    async def complete(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """See `ModelSession.complete`."""
        self._messages = messages
        # These are for the request alone: the server counts an answer's tokens otherwise than is counted here.
        self._wanted = {name: sampling.pop(name, None) for name in ("max_tokens", "tool_choice")}
        completion = await self._session.complete(messages, **sampling)
        return replace(completion, provider_fields=self._answer.provider_fields)

    async def aclose(self) -> None:
        """Nothing: the servers go on."""

    async def sample(self, ids: Sequence[int], *, max_tokens: int, **sampling: Any) -> Sampled:
        """The answer of the chat server as ids."""
        sampling.pop("stop_token_ids", None)
        limit = min(self._wanted["max_tokens"] or max_tokens, max_tokens)
        wanted = {**sampling, "tool_choice": self._wanted["tool_choice"] if self._tools else None}
        parameters = {name: value for name, value in wanted.items() if value is not None}
        more = {name: parameters.pop(name) for name in list(parameters) if name not in _OPENAI_PARAMETERS}
        if more:
            parameters["extra_body"] = {**parameters.get("extra_body", {}), **more}
        if self._tools:
            parameters["tools"] = list(self._tools)
        manager = self._servers.manager
        response = await self._servers.ask(
            lambda: manager.chat_completion(messages=list(self._messages), max_tokens=limit, n=1, **parameters)
        )
        try:
            answer = read_answer(response.model_dump(), lambda text: self._parse(text, self._tools))
        except BadAnswer as error:
            raise ModelError(f"the inference server's answer cannot be used: {error}") from error
        encoded = self._template.answer(self._answer_text(answer))
        if len(encoded) > max_tokens:
            raise ContextExceeded(f"the answer has {len(encoded)} tokens; there is room for {max_tokens}")
        self._answer = answer
        return Sampled(tuple(encoded), None, "length" if answer.finish_reason == "length" else "stop")

    def _answer_text(self, answer: Completion) -> str:
        """What a model on tokens would have written."""
        thought = f"<think>\n{answer.reasoning}\n</think>\n\n" if answer.reasoning else ""
        calls = written(answer.tool_calls, self._render) if answer.tool_calls else ""
        return thought + "\n".join(filter(None, (answer.content or "", calls)))

    def _parse_answer(self, _text: str, _tools: Tools) -> Parsed:
        """The server's answer, in the place of what could be read in its encoded text."""
        answer = self._answer
        return Parsed(answer.content, answer.reasoning, answer.tool_calls, problems=answer.problems)


def make_model(
    servers: Servers, kind: ServerKind, template: ChatTemplate, *, parser: str | Parser, context_tokens: int, name: str
) -> TokenModel | ChatModel:
    """The model of an environment; prompt and answers of an episode have at most `context_tokens` ids."""
    if kind == "openai":
        if not isinstance(parser, str):
            raise ConfigError("a chat server's answers are written anew in the format of the parser: it needs a name")
        return ChatModel(servers, template, parser=parser, context_tokens=context_tokens, model=name)
    sampler = ServerSampler(servers, kind)
    return TokenModel(sampler, template, parser=parser, context_tokens=context_tokens, model=name)


def validate_servers(servers: object, config: SandboxEnvConfig) -> list[APIServerConfig]:
    """The servers, with the tokenizer of the environment where they name none."""
    if not isinstance(servers, list) or not servers:
        raise ConfigError(
            "server_configs must be a list of APIServerConfig: of a single one atroposlib ignores the base_url, and "
            "asks localhost:9004 to 9007"
        )
    checked = []
    for server in servers:
        if server.server_type != servers[0].server_type:
            raise ConfigError("all servers of an environment are of one server_type")
        if server.server_type == "trl":
            raise ConfigError("atroposlib gives no token ids of a trl server: use vllm or sglang")
        if config.inference_server == "tinker" and server.server_type != "sglang":
            raise ConfigError("the server of tinker-atropos speaks the form of sglang: say --openai.server_type sglang")
        if config.inference_server not in ("auto", "tinker", server.server_type):
            raise ConfigError(f"inference_server is {config.inference_server}, and server_type {server.server_type}")
        if server.base_url and not server.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url is an address such as http://localhost:9001/v1, not {server.base_url!r}")
        if not server.api_key:
            raise ConfigError("api_key is empty, which the client refuses: give any text, such as x")
        if server.tokenizer_name not in ("none", config.tokenizer_name):
            raise ConfigError(
                f"the server's tokenizer is {server.tokenizer_name!r} and the environment's {config.tokenizer_name!r}: "
                "the ids of one mean other texts in the other"
            )
        timeout = config.request_timeout_s or server.timeout
        checked.append(server.model_copy(update={"tokenizer_name": config.tokenizer_name, "timeout": timeout}))
    return checked


def check_logprobs(kind: ServerKind, config: SandboxEnvConfig) -> None:
    """Raise ConfigError where a server's log-probabilities are not those of its samples."""
    if kind == "openai":
        return
    mode, sampling = config.logprobs or LOGPROBS[kind], config.sampling_parameters
    if not exact_at(mode, sampling):
        raise ConfigError(
            f"log-probabilities of a {kind} server are {mode}, and with {sampling} not those of what is sampled, so "
            "that every ratio of a trainer would be wrong: sample with temperature 1 and without top_p and the like, "
            "or start the server with processed log-probabilities and say --env.logprobs processed"
        )
