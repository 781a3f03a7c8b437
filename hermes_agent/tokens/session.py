"""The token ids of one episode: every prompted and sampled id, kept unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import eq
from typing import Any, NamedTuple

from hermes_agent.errors import ContextExceeded, ModelError
from hermes_agent.messages import Completion, Message, TokenUsage, TurnTokens, calls_of
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers import Parser, get_parser
from hermes_agent.parsers.unread_calls import unread_calls
from hermes_agent.tokens.answers import Sample, validate_sample
from hermes_agent.tokens.samplers import Sampler
from hermes_agent.tokens.template import ChatTemplate
from hermes_exec.errors import ConfigError, ErrorCause


class _SessionState(NamedTuple):
    """All ids of prompts and samples, their messages, and the completion from the last ids.

    `restarted` means that the last turn kept nothing of the state before.
    """

    ids: tuple[int, ...] = ()
    seen: tuple[Message, ...] = ()
    own: Completion | None = None
    restarted: bool = False


class _PromptAddition(NamedTuple):
    """The ids that a request adds to a state. `restarts` means that nothing of the state is kept."""

    state: _SessionState
    added: tuple[int, ...]
    restarts: bool = False


class TokenSession:
    """A `ModelSession` that prompts with the exact ids of earlier turns, followed by the ids of the new messages.

    The messages are compared with the messages of the previous call. If they continue them, the ids continue too.
    Otherwise the whole conversation is rendered again and the turn is marked (`TurnTokens.restarts`): an earlier
    message was changed or left out, or an answer was cut because it went on in another role. The state changes only
    with a sample, so a retry after an error, or a request for another answer to the same messages, adds nothing twice.

    Args:
        sampler: The server that samples ids.
        template: The chat template.
        tools: The function schemas of the episode.
        parser: Reads the sampled text without the end of the turn.
        context_tokens: The model's context window, prompt and answer together. An answer is kept within it.
        sampling: Defaults for every request.
    """

    def __init__(
        self,
        sampler: Sampler,
        template: ChatTemplate,
        tools: Sequence[Mapping[str, Any]],
        *,
        parser: Parser,
        context_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self._sampler, self._template, self._tools, self._parser = sampler, template, tools, parser
        self._context_tokens, self._sampling = context_tokens, dict(sampling or {})
        self._state = self._before = _SessionState()

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        """Return one completion, with its ids in `tokens` and its text in `raw`; see `ModelSession.complete`.

        `max_tokens` is required if there is no `context_tokens`, and is reduced to the free context.

        Raises:
            ContextExceeded: If the context has no room for one id, before anything is sent.
            ModelError: If the chat template refuses the conversation, or `tool_choice` forces a call.
        """
        parameters = {**self._sampling, **{name: value for name, value in sampling.items() if value is not None}}
        if parameters.pop("tool_choice", "auto") not in ("auto", "none"):
            raise ModelError("a model on token ids cannot be forced to make a call", cause=ErrorCause.CONFIG)
        step = self._step(messages)
        prompt = (*step.state.ids, *step.added)
        max_tokens = self._room(len(prompt), parameters.pop("max_tokens", None))
        parameters["stop_token_ids"] = sorted({*self._template.end_ids, *(parameters.get("stop_token_ids") or ())})
        sample = await self._sampler.sample(prompt, max_tokens=max_tokens, **parameters)
        answer = self._validate(sample, max_tokens)
        completion = self._completion(step, answer, len(prompt), max_tokens)
        new = deepcopy(list(messages[len(step.state.seen) :]))
        self._before = step.state
        self._state = _SessionState((*prompt, *answer.ids), (*step.state.seen, *new), completion, step.restarts)
        return completion

    async def aclose(self) -> None:
        """Do nothing: the sampler stays open."""

    def _step(self, messages: Sequence[Message]) -> _PromptAddition:
        # The previous state serves another answer to the same messages. Other messages hold the last answer, perhaps
        # changed: its ids are part of the sequence, and the previous state has none of them.
        again = _same(self._state.seen, messages)
        try:
            for state in (self._state, self._before) if again else (self._state,):
                # The ids of a cut answer include text that is no longer in its message.
                if state.own is None or state.own.cut_at_invention:
                    continue
                new = _new_messages(state, state.own, messages)
                if new is not None:
                    return _PromptAddition(state, tuple(self._template.suffix(new, self._tools, after=state.ids[-1])))
            whole = tuple(self._template.prompt(messages, self._tools))
        except ConfigError as error:
            raise ModelError(str(error), cause=ErrorCause.CONFIG) from error
        return _PromptAddition(
            _SessionState(), whole, restarts=self._state.restarted if again else self._state.own is not None
        )

    def _room(self, prompt_tokens: int, max_tokens: object) -> int:
        """Return how many ids may be sampled."""
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise ModelError(f"max_tokens is a number of at least 1, not {max_tokens!r}", cause=ErrorCause.CONFIG)
        if self._context_tokens is None:
            if max_tokens is None:
                raise ModelError(
                    "set max_tokens, or context_tokens of the model: servers of token ids sample very few by default",
                    cause=ErrorCause.CONFIG,
                )
            return max_tokens
        left = self._context_tokens - prompt_tokens
        if left < 1:
            raise ContextExceeded(f"the prompt has {prompt_tokens} tokens; the context is {self._context_tokens}")
        return left if max_tokens is None else min(max_tokens, left)

    def _validate(self, sample: Sample, max_tokens: int) -> Sample:
        ids, logprobs, finish = sample
        try:
            values = [0.0] * len(ids) if logprobs is None else list(logprobs)
            validated = validate_sample(list(ids), values, finish, max_tokens)
        except (BadAnswer, TypeError) as error:
            raise ModelError(f"{type(self._sampler).__name__}: {error}") from error
        return validated._replace(logprobs=None) if logprobs is None else validated

    def _completion(self, step: _PromptAddition, answer: Sample, prompt_tokens: int, max_tokens: int) -> Completion:
        try:
            text = self._template.text(answer.ids)
        except ValueError as error:
            raise ModelError(f"the sampled ids are of another tokenizer: {error}", cause=ErrorCause.CONFIG) from error
        parsed = self._parser(text, self._tools)
        if not parsed.tool_calls:
            # Only a warning: a policy that leaves its format must not escape its reward.
            unread_calls(parsed.content, self._tools, model="the model on tokens")
        ended = answer.ids[-1] in self._template.end_ids
        cut = not ended and (answer.finish == "length" or len(answer.ids) >= max_tokens)
        return parsed.completion(
            text,
            "length" if cut else "stop",
            TokenUsage(prompt_tokens, len(answer.ids), 1),
            TurnTokens(step.added, answer.ids, answer.logprobs, step.restarts),
        )


class TokenModel:
    """A model that keeps exact token ids: it makes a `TokenSession` for each episode (`SessionModel`).

    Args:
        sampler: The server that samples ids.
        template: The chat template.
        parser: The name of the format of the model's calls, or a `Parser`.
        context_tokens: The model's context window, prompt and answer together.
        sampling: Defaults for every request.
        model: A name for records.

    Raises:
        ConfigError: If the parser is unknown, or `context_tokens` is below 2.
    """

    def __init__(
        self,
        sampler: Sampler,
        template: ChatTemplate,
        *,
        parser: str | Parser = "hermes",
        context_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        model: str = "tokens",
    ) -> None:
        if context_tokens is not None and context_tokens < 2:
            raise ConfigError(f"context_tokens is at least 2, not {context_tokens}")
        self.model = model
        self.sampler, self.template = sampler, template
        self._parser = get_parser(parser) if isinstance(parser, str) else parser
        self._context_tokens, self._sampling = context_tokens, dict(sampling or {})

    def session(self, tools: Sequence[Mapping[str, Any]]) -> TokenSession:
        """Return a new session, for one episode with these tools."""
        return TokenSession(
            self.sampler,
            self.template,
            tools,
            parser=self._parser,
            context_tokens=self._context_tokens,
            sampling=self._sampling,
        )

    async def aclose(self) -> None:
        """Close the connections of the sampler, if it has any."""
        close = getattr(self.sampler, "aclose", None)
        if close is not None:
            await close()


def _new_messages(state: _SessionState, own: Completion, messages: Sequence[Message]) -> Sequence[Message] | None:
    """Return the messages after a state and its sampled turn. None if the conversation does not continue the state."""
    size = len(state.seen)
    if len(messages) <= size or not _same(state.seen, messages[:size]):
        return None
    turn = messages[size]
    calls = [(call.name, call.arguments) for call in calls_of(turn)]
    message_turn = (turn.get("role"), turn.get("content") or "", calls)
    sampled_turn = ("assistant", own.content or "", [(call.name, call.arguments) for call in own.tool_calls])
    return messages[size + 1 :] if message_turn == sampled_turn else None


def _same(seen: Sequence[Message], messages: Sequence[Message]) -> bool:
    return len(seen) == len(messages) and all(map(eq, seen, messages))
