"""A model's chat template as token ids: whole prompts, and the messages after a sampled turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from hermes_agent.messages import Message, content_of, image_parts, message_text
from hermes_agent.tokens.control import ControlTokens, Tokenizer, new_nonce
from hermes_agent.tokens.probe import (
    MORE,
    OVERRIDE,
    QUESTION,
    Endings,
    Form,
    after_mark,
    check_tools,
    probe_endings,
    probe_form,
    result,
    stand_in_turn,
)
from hermes_exec.errors import ConfigError

_CACHED_PROMPTS = 16


class ChatTemplate:
    """The chat template of a tokenizer.

    The constructor probes the template. Texts in messages of tools and users never become control tokens, see
    `ControlTokens`. Texts in system and assistant messages do, because they come from the caller and the model. Only
    texts are encoded here (`tokenize=False`): `apply_chat_template` returns another type in version 5 of `transformers`
    than in version 4.

    Args:
        tokenizer: A tokenizer of `transformers`, or any object with the methods of `Tokenizer`.
        chat_template: A Jinja text that replaces the tokenizer's own.
        end: The tokens that end an assistant turn, as ids or texts of one token each. Default: the tokenizer's
            `eos_token_id` and the control tokens that the template prints after an assistant turn.
        tools_in_prompt: Whether the template gets the tools. False is for callers who describe them in the system
            message.
        variables: Further variables of the template, such as `{"enable_thinking": False}`.

    Raises:
        ConfigError: If the template renders no tools (some drop them silently), refuses or drops tool results, or ends
            turns without a control token. The message contains the remedy.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        end: Iterable[str | int] | None = None,
        tools_in_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template, self._variables = chat_template, dict(variables or {})
        self._tools_in_prompt = tools_in_prompt
        self._control = ControlTokens(tokenizer)
        # All rollouts of a group begin with the same prompt, most of them at the same time.
        self._encode_prompt = lru_cache(_CACHED_PROMPTS)(lambda text: tuple(self._control.encode(text, new_nonce())))
        vocabulary = getattr(tokenizer, "get_vocab", None)
        self._highest_id = None if vocabulary is None else max(vocabulary().values())
        self._form = Form()
        self._render([QUESTION], None)
        if tools_in_prompt:
            check_tools(self._render)
        self._form = probe_form(self._render)
        self._endings = self._find_endings(end)
        self._check_suffixes()

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an assistant turn. A model has to stop at each of them."""
        return self._endings.stops

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a whole conversation, up to the model's next turn. Raise ConfigError if the template
        refuses it.
        """
        nonce = new_nonce()
        text = self._render(self._prepare(messages, nonce), tools, generation=True)
        return self._control.encode(text, nonce) if nonce in text else list(self._encode_prompt(text))

    def suffix(
        self, new: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, after: int | None = None
    ) -> list[int]:
        """Return the ids of these messages after an assistant turn, up to the model's next turn.

        They begin with the id that ends the assistant turn. Pass the last sampled id as `after` to leave that id out if
        the model has written it. The turn itself is not rendered: a meaningless text is put in its place and cut off,
        so that neither its ids nor the template's treatment of it matter.

        Raises:
            ConfigError: If the template refuses the messages.
        """
        nonce, mark = new_nonce(), new_nonce()
        prepared = self._prepare(new, nonce)
        turn = stand_in_turn(self._form, mark, _result_calls(prepared))
        text = self._render([QUESTION, turn, *prepared], tools, generation=True)
        ids = self._control.encode(after_mark(mark, text), nonce)
        ends = self._endings
        first = next((place for place, number in enumerate(ids) if number in ends.bounds), None)
        if first is None:
            raise ConfigError("the chat template ends no assistant turn before these messages; name its end tokens")
        # If a template has no end, its bound is the token of the next role, and stays after another end.
        written = after == ids[first] or (after in ends.stops and ids[first] in ends.closing)
        return ids[first + written :]

    def answer(self, text: str) -> list[int]:
        """Return the ids with which a model would have written this text as its turn, with the end of the turn."""
        end = [number for number in self.suffix([MORE], ())[:1] if number in self.end_ids]
        return self._ids(text.encode("utf-8", "replace").decode()) + end

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids without the end of the turn. Raise ValueError if the tokenizer cannot decode
        them.

        The text includes control tokens, because tags of tool calls may be control tokens.
        """
        # The tokenizers of transformers skip unknown ids, and a trainer's model has no row for them.
        if self._highest_id is not None and (unknown := max(ids, default=0)) > self._highest_id:
            raise ValueError(f"the highest id of the tokenizer is {self._highest_id}, and one is {unknown}")
        written = list(ids[:-1] if ids and ids[-1] in self.end_ids else ids)
        try:
            # Some tokenizers clean up by default, which removes spaces: "ls ." would become "ls.".
            return str(self._tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        except Exception as error:
            raise ValueError(f"the tokenizer cannot decode these ids ({type(error).__name__}: {error})") from error

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool = False,
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=[_plain_schema(tool) for tool in tools] if tools and self._tools_in_prompt else None,
                chat_template=self._chat_template,
                tokenize=False,
                add_generation_prompt=generation,
                **self._variables,
            )
        except Exception as error:
            raise ConfigError(f"the chat template refuses the conversation: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise ConfigError(f"the tokenizer's apply_chat_template returned {type(text).__name__}, not a text")
        return text

    def _prepare(self, messages: Sequence[Message], nonce: str) -> list[Message]:
        if any(image_parts(message) for message in messages if message.get("role") == "tool"):
            raise ConfigError("the tokens of images are not kept: leave ToolOptions.native_images off")
        merged = _merge_user_messages(messages) if self._form.merges else messages
        if not self._form.system:
            merged = _move_system_text(merged)
        if self._form.arguments == "object":
            merged = [_with_objects(message) for message in merged]
        return [self._control.guard(nonce, message) for message in merged]

    def _find_endings(self, end: Iterable[str | int] | None) -> Endings:
        eos = self._tokenizer.eos_token_id
        endings = probe_endings(self._render, self._form, self._control_ids, eos)
        if end is not None:
            ids = frozenset(self._one_id(each) for each in end)
            stops = ids if eos is None else ids | {eos}
            return endings.with_stops(stops) if endings else Endings(stops, stops, stops)
        if endings is None:
            raise ConfigError(
                f"the chat template ends turns with a text without a control token: {OVERRIDE}, or name the "
                "tokens that end a turn as end="
            )
        return endings

    def _check_suffixes(self) -> None:
        """Raise ConfigError unless a message of the user and a result can follow an assistant turn."""
        for message in (MORE, result(("probe0001", "tool"), "result")):
            try:
                self.suffix([message], ())
            except ConfigError as error:
                raise ConfigError(
                    f"the chat template cannot go on after an assistant turn ({error}): {OVERRIDE}, or name the tokens "
                    "that end a turn as end="
                ) from error

    def _one_id(self, end: str | int) -> int:
        if isinstance(end, int):
            return end
        ids = self._ids(end)
        if len(ids) != 1:
            raise ConfigError(f"end names tokens of one id each; {end!r} is {len(ids)} ids of this tokenizer")
        return ids[0]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _control_ids(self, text: str) -> list[int]:
        return [number for number in self._ids(text) if number in self._control.ids]


def _plain_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in the form of chat completion interfaces, without the keys for this library."""
    return {name: tool[name] for name in ("type", "function") if name in tool}


def _result_calls(new: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the calls (id, name) of the results at the beginning of these messages."""
    results = takewhile(lambda message: message.get("role") == "tool", new)
    return [(str(message.get("tool_call_id", "")), str(message.get("name") or "tool")) for message in results]


def _with_objects(message: Message) -> Message:
    """Return the message with the arguments of its calls as objects, as templates expect them.

    Arguments that are not a JSON object are put under one name.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        function["arguments"] = parsed if isinstance(parsed, dict) else {"arguments": arguments}
    return {**call, "function": function}


def _merge_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, with each user message after a tool result appended to that result, after a blank line."""
    merged: list[Message] = []
    for message in messages:
        if message.get("role") == "user" and merged and merged[-1].get("role") == "tool":
            last = merged.pop()
            message = {**last, "content": f"{message_text(last, chr(10))}\n\n{message_text(message, chr(10))}"}
        merged.append(message)
    return merged


def _move_system_text(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages, with the text of a system message at their beginning put before that of the user."""
    if not messages or messages[0].get("role") != "system":
        return messages
    system, after = messages[0], messages[1:]
    if after and after[0].get("role") == "user":
        texts = (message_text(system), message_text(after[0]))
        return [{**after[0], "content": content_of("\n\n".join(texts), image_parts(after[0]))}, *after[1:]]
    return [{**system, "role": "user"}, *after]
