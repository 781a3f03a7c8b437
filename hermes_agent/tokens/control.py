"""Control tokens as text: text of a tool or a user never becomes a control token."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hermes_agent.messages import Message


class AddedToken(Protocol):
    """One entry of `added_tokens_decoder`."""

    @property
    def content(self) -> str: ...  # noqa: D102


class Tokenizer(Protocol):
    """The part of a tokenizer that is used. `PreTrainedTokenizerBase` of `transformers` (versions 4 and 5) implements
    it.
    """

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...  # noqa: D102
    @property
    def eos_token_id(self) -> int | None: ...  # noqa: D102
    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...  # noqa: D102
    def decode(  # noqa: D102
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> object: ...
    def apply_chat_template(  # noqa: D102
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        chat_template: str | None,
        tokenize: bool,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> object: ...


class ControlTokens:
    """The control strings of a tokenizer, and their encoding as plain text.

    They are all added tokens (`added_tokens_decoder`), even those that are not marked as special, such as `<tool_call>`
    in Qwen's vocabulary, because models treat them as control tokens all the same. Added tokens of only white space are
    not among them, nor is a single character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = {int(number): token.content for number, token in tokenizer.added_tokens_decoder.items()}
        self.ids = frozenset(added)
        self._strings = sorted({text for text in added.values() if len(text) > 1 and not text.isspace()})
        self._number = {text: number for number, text in enumerate(self._strings)}
        self._pattern = re.compile(_alternation(self._strings)) if self._strings else None
        self._as_text: dict[str, list[int]] = {}

    def guard(self, nonce: str, message: Message) -> Message:
        """Return the message with a mark in place of each control string, in all its texts.

        Messages in other roles than tool and user stay as they are. `nonce` is of letters and digits, and unknown to
        the author of the text.
        """
        if self._pattern is None or message.get("role") not in {"tool", "user"}:
            return message
        return {name: value if name == "role" else self._guard_value(nonce, value) for name, value in message.items()}

    def encode(self, text: str, nonce: str) -> list[int]:
        """Return the ids of a rendered text. Control strings become control tokens, except after a mark."""
        # Tokenizers raise for half of a surrogate pair; a model can write one as an escape in JSON.
        first, *marked = text.encode("utf-8", "replace").decode("utf-8").split(nonce)
        ids = self._encode_text(first)
        for piece in marked:
            _, number, after = piece.split("x", 2)
            ids += self._text_ids(self._strings[int(number)])
            ids += self._encode_text(after)
        return ids

    def _guard_value(self, nonce: str, value: object) -> object:
        if isinstance(value, str) and self._pattern is not None:
            return self._pattern.sub(lambda match: f"{nonce}x{self._number[match.group()]}x", value)
        if isinstance(value, list):
            return [self._guard_value(nonce, item) for item in value]
        if isinstance(value, dict):
            return {name: self._guard_value(nonce, item) for name, item in value.items()}
        return value

    def _encode_text(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _text_ids(self, control: str) -> list[int]:
        if control not in self._as_text:
            self._as_text[control] = self._split_up(control)
        return self._as_text[control]

    def _split_up(self, control: str) -> list[int]:
        """Return ids that are not control tokens and decode to this control string.

        It is encoded in two parts, or else one character after the other.
        """
        splits: Iterable[tuple[str, ...]] = [(control[:at], control[at:]) for at in range(1, len(control))]
        for parts in [*splits, tuple(control)]:
            ids = [number for part in parts for number in self._encode_text(part)]
            if not self.ids.intersection(ids):
                return ids
        # Each character is an added token of its own: there is no other way to write it.
        return [number for part in control for number in self._encode_text(part)]


def new_nonce() -> str:
    """Return letters and digits that nobody can guess, for marks in one rendering."""
    return f"m{secrets.token_hex(12)}"


def _alternation(strings: Sequence[str]) -> str:
    """Return a pattern that matches the longest of these strings, in time that does not depend on their number.

    Common beginnings are shared, because vocabularies have thousands of strings that begin alike (`<unused1234>`).
    """
    # Not the obvious code: see docs/why-not-obvious.md ("One pattern with shared beginnings for all control tokens")
    branches: dict[str, list[str]] = {}
    for text in strings:
        if text:
            branches.setdefault(text[0], []).append(text[1:])
    parts = [_branch(first, rests) for first, rests in branches.items()]
    whole = parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
    return f"(?:{whole})?" if "" in strings else whole


def _branch(first: str, rests: list[str]) -> str:
    shared = first
    while len(set(rests)) == 1 and rests[0]:
        shared, rests = shared + rests[0][0], [rests[0][1:]]
    return re.escape(shared) + (_alternation(rests) if any(rests) else "")
