"""A model on token ids, and its session of one episode: every prompted and sampled id is kept unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_agent.errors import ContextExceeded, ModelError, RequestRefused
from hermes_agent.messages import Completion, Message, TokenUsage, TurnTokens
from hermes_agent.models.endpoint import BadAnswer
from hermes_agent.parsers import Parser, get_parser
from hermes_agent.parsers.unread_calls import unread_calls
from hermes_agent.tokens.answers import Sample, validate_sample
from hermes_agent.tokens.samplers import Sampler
from hermes_agent.tokens.template import ChatTemplate
from hermes_agent.turn_tree import Key, TurnNode, conversation_keys
from hermes_exec.errors import ConfigError, ErrorCause

_MAX_CHARACTERS_OF_TOKEN = 64
"""No text has more characters for each token, on average: only runs of one character have tokens of this length."""


class TokenModel:
    """A model that keeps exact token ids: it makes a `TokenSession` for each episode (`SessionModel`).

    Args:
        sampler: The server that samples ids.
        template: The chat template.
        parser: The name of the format of the model's calls, or a `Parser`. It reads the sampled text without the end of
            the turn.
        context_tokens: The model's context window, prompt and answer together. An answer is kept within it.
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
        self.context_tokens, self.sampling = context_tokens, dict(sampling or {})
        self._parser = get_parser(parser) if isinstance(parser, str) else parser

    def session(self, tools: Sequence[Mapping[str, Any]]) -> TokenSession:
        """Return a new session, for one episode with these tools."""
        return TokenSession(self, tools)

    async def sample_turn(
        self,
        before: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        restarts: bool = False,
        **sampling: object,
    ) -> Completion:
        """Return the answer to messages that follow earlier turns, with its ids in `tokens` and its text in `raw`.

        Args:
            before: All ids of the earlier turns, which end with sampled ids. None of them changes. Empty: `messages`
                are a whole conversation.
            messages: The messages after these ids.
            tools: The function schemas.
            restarts: The value of `TurnTokens.restarts`.
            sampling: Parameters that replace the defaults of the model. `max_tokens` is required if there is no
                `context_tokens`, and is reduced to the free context. `stop_token_ids` are added to the template's.

        Raises:
            ContextExceeded: If the context has no room for one id, before anything is sent.
            RequestRefused: If the chat template refuses the conversation, or `tool_choice` forces a call.
            ModelError: If the sampler fails.
        """
        parameters = {**self.sampling, **{name: value for name, value in sampling.items() if value is not None}}
        if parameters.pop("tool_choice", "auto") not in ("auto", "none"):
            raise RequestRefused("a model on token ids cannot be forced to make a call")
        self._check_characters(messages, tools)
        try:
            if before:
                added = self.template.suffix(messages, tools, after=before[-1])
            else:
                added = self.template.prompt(messages, tools)
        except ConfigError as error:
            raise RequestRefused(str(error)) from error
        prompt = (*before, *added)
        max_tokens = self._room(len(prompt), parameters.pop("max_tokens", None))
        parameters["stop_token_ids"] = sorted({*self.template.end_ids, *(parameters.get("stop_token_ids") or ())})
        sample = await self.sampler.sample(prompt, max_tokens=max_tokens, **parameters)
        answer = self._validate(sample, max_tokens)
        try:
            text = self.template.text(answer.ids)
        except ValueError as error:
            raise ModelError(f"the sampled ids are of another tokenizer: {error}", cause=ErrorCause.CONFIG) from error
        parsed = self._parser(text, tools)
        if not parsed.tool_calls:
            # Only a warning: a policy that leaves its format must not escape its reward.
            unread_calls(parsed.content, tools, model="the model on tokens")
        ended = answer.ids[-1] in self.template.end_ids
        cut = not ended and (answer.finish == "length" or len(answer.ids) >= max_tokens)
        return parsed.completion(
            text,
            "length" if cut else "stop",
            TokenUsage(len(prompt), len(answer.ids), 1),
            TurnTokens(tuple(added), answer.ids, answer.logprobs, restarts),
        )

    async def aclose(self) -> None:
        """Close the connections of the sampler, if it has any."""
        close = getattr(self.sampler, "aclose", None)
        if close is not None:
            await close()

    def _check_characters(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Raise ContextExceeded for messages that cannot fit, before they are made tokens: that blocks the event loop
        for seconds, and a harness may send 64 MiB.
        """
        if self.context_tokens is None:
            return
        characters = sum(len(repr(each)) for each in (*messages, *tools))
        if characters > _MAX_CHARACTERS_OF_TOKEN * self.context_tokens:
            raise ContextExceeded(
                f"the messages have {characters} characters; the context is {self.context_tokens} tokens"
            )

    def _room(self, prompt_tokens: int, max_tokens: object) -> int:
        """Return how many ids may be sampled."""
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise RequestRefused(f"max_tokens is a number of at least 1, not {max_tokens!r}")
        if self.context_tokens is None:
            if max_tokens is None:
                raise RequestRefused(
                    "set max_tokens, or context_tokens of the model: servers of token ids sample very few by default"
                )
            return max_tokens
        left = self.context_tokens - prompt_tokens
        if left < 1:
            raise ContextExceeded(f"the prompt has {prompt_tokens} tokens; the context is {self.context_tokens}")
        return left if max_tokens is None else min(max_tokens, left)

    def _validate(self, sample: Sample, max_tokens: int) -> Sample:
        ids, logprobs, finish = sample
        try:
            values = [0.0] * len(ids) if logprobs is None else list(logprobs)
            validated = validate_sample(list(ids), values, finish, max_tokens)
        except (BadAnswer, TypeError) as error:
            raise ModelError(f"{type(self.sampler).__name__}: {error}") from error
        return validated._replace(logprobs=None) if logprobs is None else validated


class TokenSession:
    """A `ModelSession` that prompts with the exact ids of earlier turns, followed by the ids of the new messages.

    The messages are compared with the messages of the previous call (`conversation_keys`). If they continue them, the
    ids continue too. Otherwise the whole conversation is rendered again and the turn is marked (`TurnTokens.restarts`):
    an earlier message was changed or left out, or an answer was cut because it went on in another role. The state
    changes only with a sample, so a retry after an error, or a request for another answer to the same messages, adds
    nothing twice.

    Args:
        model: The model.
        tools: The function schemas of the episode.
    """

    def __init__(self, model: TokenModel, tools: Sequence[Mapping[str, Any]]) -> None:
        self._model, self._tools = model, tools
        self._last: TurnNode | None = None

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        """Return one completion; see `ModelSession.complete` and `TokenModel.sample_turn`."""
        keys = conversation_keys(messages)
        parent, restarts = self._find_parent(keys)
        before, size = ([], 0) if parent is None else (parent.prompted_ids(), parent.size)
        completion = await self._model.sample_turn(before, messages[size:], self._tools, restarts=restarts, **sampling)
        self._last = TurnNode(parent, completion, keys[-1], len(keys))
        return completion

    async def aclose(self) -> None:
        """Do nothing: the sampler stays open."""

    def _find_parent(self, keys: Sequence[Key]) -> tuple[TurnNode | None, bool]:
        """Return the turn that a conversation continues, and whether the ids begin anew."""
        last = self._last
        if last is None or last.continues_to(keys):
            return last, False
        if keys[-1] == last.request_key:  # another answer to the same messages
            return last.parent, last.completion.tokens is not None and last.completion.tokens.restarts
        return None, True
