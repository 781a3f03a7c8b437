"""A model behind any endpoint with OpenAI's chat completions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from hermes_agent.errors import ModelError
from hermes_agent.messages import Completion, Message, content_of, image_parts, message_text
from hermes_agent.models.chat_answer import read_answer
from hermes_agent.models.chat_images import move_images
from hermes_agent.models.chat_stream import ChunkAssembler
from hermes_agent.models.chat_text import as_text, leading_system
from hermes_agent.models.endpoint import Endpoint, EndpointStatus
from hermes_agent.models.prices import Prices
from hermes_agent.parsers import get_parser, get_renderer
from hermes_agent.parsers.unread_calls import unread_calls
from hermes_exec.errors import ConfigError, ErrorCause

logger = logging.getLogger(__name__)
_REFUSAL_STATUSES = frozenset({400, 415, 422, 501})
"""Statuses with which an endpoint may refuse to stream."""
_SLOW_TOKENS_PER_S = 4
"""The fewest tokens of an answer that arrive per second, even from a busy server."""
_TOOL_PARAMETERS = ("tool_choice", "parallel_tool_calls")


class _AnswerMode(NamedTuple):
    """The fields that request an answer in one form. `warning` is for users whose endpoint supports no other form."""

    fields: Mapping[str, Any]
    warning: str


_WHOLE = _AnswerMode({}, "does not stream its answers: each has timeout_s for all of it")
_STREAMED = (
    _AnswerMode({"stream": True, "stream_options": {"include_usage": True}}, ""),
    _AnswerMode({"stream": True}, ""),
    _WHOLE,
)


class OpenAIModel:
    """Completions from any endpoint with OpenAI's interface (extra `agent`).

    All models with the same `base_url` and `api_key` share one back-off and one number of requests in flight: see
    `Endpoint` for rate limits and outages.

    Args:
        model: The name of the model.
        base_url: The endpoint. None: OpenAI's own.
        api_key: Sent as bearer token. Endpoints without keys accept any text.
        timeout_s: Longest silence: the time without a byte of an answer.
        connect_timeout_s: Longest connection attempt.
        max_retries: How often a lost completion is requested again. It may be paid for twice, which 0 prevents.
        wait_outage_s: How long to wait for an endpoint that is away.
        stream: Whether to stream answers, so that a long answer is not silent. With False, or from an endpoint that
            does not stream, an answer comes as a whole and has `timeout_s` for all of it. "auto" does the same if
            `max_tokens` is at most four times `timeout_s`: a short answer is soon complete, and a stream costs much
            more processor time of this process.
        parser: The format of calls in plain text (`hermes`, …), for endpoints that pass the model's text through. None
            accepts only structured calls.
        text_tools: Whether to describe tools in the Hermes system prompt, and write calls and results as plain text,
            for endpoints without tools. `parser` is then `hermes` by default.
        system: A text at the end of the system message of every request. It goes into no history.
        prefill: Messages after the leading system messages of every request. They go into no history.
        prices: The prices of tokens, for an endpoint that does not report the cost of a completion.
        sampling: Defaults for every request. Parameters are sent under their names, whatever they are
            (`reasoning_effort`, `provider`, `top_k`, …), and the entries of `extra_body` beside them.

    Raises:
        ConfigError: If `base_url`, a bound or the parser is invalid, or `httpcore2` is not installed.
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
        wait_outage_s: float = 1800.0,
        stream: bool | Literal["auto"] = "auto",
        parser: str | None = None,
        text_tools: bool = False,
        system: str | None = None,
        prefill: Sequence[Message] = (),
        prices: Prices | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        if not all("role" in message for message in prefill):
            raise ConfigError("prefill is a sequence of messages, each with a role")
        self.model = model
        self._endpoint = Endpoint(
            base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            retries=max_retries,
            wait_outage_s=wait_outage_s,
            name=model,
        )
        parser = parser or ("hermes" if text_tools else None)
        self._parse = get_parser(parser) if parser else None
        self._render = get_renderer(parser) if parser and text_tools else None
        self._system = system
        self._prefill = [dict(message) for message in prefill]
        self._prices = prices
        self._sampling = dict(sampling or {})
        self._modes: Sequence[_AnswerMode] = _STREAMED if stream else (_WHOLE,)
        # Not the obvious code: see docs/why-not-obvious.md ("Short answers are not streamed")
        self._short_tokens = _SLOW_TOKENS_PER_S * timeout_s if stream == "auto" else 0.0

    @property
    def base_url(self) -> str:
        """The endpoint, without user and password."""
        return self._endpoint.base_url

    @property
    def status(self) -> EndpointStatus:
        """The state of the endpoint, for all its users in this event loop."""
        return self._endpoint.status

    def move_waiting_if(self, should_move: Callable[[], bool]) -> None:
        """Let requests that wait during an outage fail with EndpointAway when `should_move` returns True."""
        self._endpoint.should_move = should_move

    def move_waiting(self) -> None:
        """Check for the requests that wait whether they should move."""
        self._endpoint.move_waiting()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Return one completion; see `Model.complete`. Raise AccessRefused for a refused key or an empty quota."""
        body = self._body(messages, tools, {**self._sampling, **sampling})
        # With tool_choice="none" a server passes calls through as text that its parser would have read.
        may_call = sampling.get("tool_choice") != "none"

        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        limit = limit if isinstance(limit, int) else None

        def read(answer: object) -> Completion:
            return self._read(answer, tools, limit, may_call=may_call)

        short = limit is not None and limit <= self._short_tokens
        modes, at = (_WHOLE,) if short else self._modes, 0
        while True:
            try:
                request = {**body, **modes[at].fields}
                completion = await self._endpoint.post("/chat/completions", request, read, ChunkAssembler)
            except ModelError as error:
                if (
                    modes[at] is modes[-1]
                    or error.status not in _REFUSAL_STATUSES
                    or error.cause is not ErrorCause.CONFIG
                ):
                    raise
                # In the last mode a refusal has another reason, and is raised.
                at = at + 1 if "stream_options" in str(error) or "include_usage" in str(error) else len(modes) - 1
            else:
                if len(modes) > 1:
                    self._keep_mode(modes[at], completion)
                return completion

    def _keep_mode(self, mode: _AnswerMode, completion: Completion) -> None:
        """Use this mode for all later requests, because the endpoint supports it, and warn of its limits once."""
        if len(self._modes) == 1:
            return  # another request, which began at the same time, was first
        self._modes = (mode,)
        if mode.warning:
            logger.warning("%s %s", self.model, mode.warning)
        if mode.fields and not completion.usage.completion_tokens:
            logger.warning(
                "%s streams its answers without counting their tokens, so bounds of tokens and cost do not hold; "
                "set stream=False for whole answers",
                self.model,
            )

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can be used again afterwards."""
        await self._endpoint.aclose()

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        parameters = {name: value for name, value in sampling.items() if value is not None}
        parameters |= parameters.pop("extra_body", {})
        if "stream" in parameters:
            raise ModelError(f"{self.model}: stream is a setting of OpenAIModel", cause=ErrorCause.CONFIG)
        if parameters.get("n", 1) != 1:
            raise ModelError(f"{self.model}: n must be 1: only one choice is used", cause=ErrorCause.CONFIG)
        if not tools or self._render is not None:
            for name in _TOOL_PARAMETERS:
                parameters.pop(name, None)
        else:
            parameters["tools"] = list(tools)
        return {"model": self.model, "messages": self._request_messages(messages, tools), **parameters}

    def _request_messages(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        at = leading_system(messages)
        whole = [*self._add_system(messages[:at]), *self._prefill, *messages[at:]]
        return move_images(whole) if self._render is None else as_text(whole, tools, self._render)

    def _add_system(self, leading: Sequence[Message]) -> Sequence[Message]:
        """Return the leading system messages with the own text at the end of the last one: many chat templates accept
        only one.
        """
        if self._system is None:
            return leading
        if not leading:
            return [{"role": "system", "content": self._system}]
        last = leading[-1]
        text = f"{message_text(last)}\n\n{self._system}"
        return [*leading[:-1], {**last, "content": content_of(text, image_parts(last))}]

    def _read(
        self, answer: object, tools: Sequence[Mapping[str, Any]], limit: int | None, *, may_call: bool
    ) -> Completion:
        parse = self._parse
        read = None if parse is None else lambda text: parse(text, tools)
        completion = self._add_cost(read_answer(answer, read, max_tokens=limit))
        if completion.tool_calls or not may_call:
            return completion
        unread = unread_calls(completion.content, tools, model=self.model)
        return completion if unread is None else replace(completion, problems=(*completion.problems, unread))

    def _add_cost(self, completion: Completion) -> Completion:
        """Return the completion with its cost by the prices, unless the endpoint reported one."""
        if self._prices is None or completion.usage.cost:
            return completion
        return replace(completion, usage=replace(completion.usage, cost=self._prices.cost(completion.usage)))
