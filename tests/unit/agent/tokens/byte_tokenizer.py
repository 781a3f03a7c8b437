"""A tokenizer without a model: bytes, longer tokens, added tokens, and Jinja templates as in `transformers`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGER = (
    "th he in er an re on at nd st es en of te ed or ti hi as to it is ha ou the ing and ion ent for tio ere her "
    "name arguments parameters content output result user assistant system tool call question answer notes file"
)
LONGER_TOKENS = [
    *dict.fromkeys(_LONGER.split()),
    *(' "', '": ', '": "', '{"', '"}', "}}", "</", ">\n", "\n\n", "  ", " the", " of", " a", "é", "中", "中文", "…"),
]


@dataclass(frozen=True)
class Added:
    content: str


class ByteTokenizer:
    """Ids 0–255 are bytes, then longer tokens, then the added ones. `encode` takes the longest token at each place, so
    every longer token can be written in other ways, too.
    """

    def __init__(self, added: Sequence[str], template: str, *, eos: str | None) -> None:
        self._longer = [text.encode() for text in LONGER_TOKENS]
        self._by_bytes = {text: 256 + number for number, text in enumerate(self._longer)}
        self._most = max(map(len, self._longer))
        first = 256 + len(self._longer)
        self._added = {text: first + number for number, text in enumerate(added)}
        self._added_texts = {number: text for text, number in self._added.items()}
        self._pattern = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
        self._template, self._eos = template, eos
        self.rendered = 0

    @property
    def added_tokens_decoder(self) -> dict[int, Added]:
        return {number: Added(text) for number, text in self._added_texts.items()}

    @property
    def eos_token_id(self) -> int | None:
        return None if self._eos is None else self._added[self._eos]

    def id_of(self, added: str) -> int:
        return self._added[added]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        position = 0
        for found in self._pattern.finditer(text):
            ids += [*self._plain(text[position : found.start()]), self._added[found.group()]]
            position = found.end()
        return ids + self._plain(text[position:])

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return b"".join(map(self._bytes, token_ids)).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        chat_template: str | None,
        tokenize: bool,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> str:
        assert not tokenize
        self.rendered += 1
        return _compiled(chat_template or self._template).render(
            messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )

    def sampled(self, text: str, chance: random.Random) -> list[int]:
        """Ids of this text that are not those of `encode`: longer tokens are now and then written as bytes."""
        ids: list[int] = []
        for number in self.encode(text, add_special_tokens=False):
            whole = number < 256 or number in self._added_texts or chance.random() < 0.5
            ids += [number] if whole else self._bytes(number)
        return ids

    def _plain(self, text: str) -> list[int]:
        ids, data, position = [], text.encode("utf-8", "surrogatepass"), 0
        while position < len(data):
            for size in range(min(self._most, len(data) - position), 1, -1):
                number = self._by_bytes.get(data[position : position + size])
                if number is not None:
                    break
            else:
                number, size = data[position], 1
            ids.append(number)
            position += size
        return ids

    def _bytes(self, number: int) -> bytes:
        if number in self._added_texts:
            return self._added_texts[number].encode()
        return bytes([number]) if number < 256 else self._longer[number - 256]


@cache
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda _form: "26 Jul 2026")
    return environment.from_string(template)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
