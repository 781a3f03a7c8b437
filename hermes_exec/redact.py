"""Secret values of configurations, and texts, data and errors without them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

from pydantic import BaseModel, SecretBytes, SecretStr

from hermes_exec.config.model import MASK

T = TypeVar("T")
LINE_CHARS, PIECE_CHARS = 16, 32
"""From how many characters on a line of a secret is masked by itself, and half of a secret where it was cut."""
_LINE_END = re.compile(r"(?:\r|\n|\\r|\\n)+")  # also as a variable of one line holds a key of several


def secret_values(*configs: BaseModel) -> list[str]:
    """Return what must not appear in logs: the spellings of the secrets in configurations of pools and backends,
    wherever they stand in them.
    """
    return spellings({value for config in configs for value in _secrets_in(config)})


def spellings(secrets: Iterable[str]) -> list[str]:
    """Return secrets and each longer line of them, longest first, as they are and as JSON writes them: once, twice (a
    program prints JSON, and the result of its call is JSON) and three times (code of the model prints such a result).
    """
    written = [{part for secret in secrets for part in (secret, secret.strip("\r\n"), *_lines(secret))}]
    for _ in range(3):
        written.append(
            {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in written[-1] for ascii_only in (True, False)}
        )
    return sorted(set().union(*written) - {""}, key=len, reverse=True)


def _lines(secret: str) -> list[str]:
    """Return the lines that would give away a secret of several lines, without their indentation."""
    return [line for text in _LINE_END.split(secret) if len(line := text.strip()) >= LINE_CHARS]


def _secrets_in(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode("utf-8", "replace")
    elif isinstance(value, BaseModel):
        for _, inner in value:
            yield from _secrets_in(inner)
    elif isinstance(value, Mapping):
        yield from _secrets_in(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _secrets_in(inner)


def mask(text: str, secrets: list[str]) -> str:
    """Text without what `secret_values` lists, also where it was cut: half a secret and more, from its first or up to
    its last character.
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    for secret in secrets:  # not before: one spelling begins as another that is there as a whole
        half = len(secret) // 2 if len(secret) >= PIECE_CHARS else 0
        if half and secret[:half] in text:
            text = _mask_beginnings(text, secret, half)
        if half and secret[-half:] in text:
            text = _mask_beginnings(text[::-1], secret[::-1], half)[::-1]
    return text


def _mask_beginnings(text: str, secret: str, least: int) -> str:
    first, *others = text.split(secret[:least])
    rest = secret[least:]
    return first + "".join(MASK + other[_equal_chars(other, rest) :] for other in others)


def _equal_chars(text: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((number for number, (one, two) in pairs if one != two), min(len(text), len(other)))


def mask_data(data: T, secrets: list[str]) -> T:
    """JSON data with the values of secrets masked in every text of it; names of fields stay."""
    result: object = data
    if isinstance(data, str):
        result = mask(data, secrets)
    elif isinstance(data, dict):
        result = {name: mask_data(value, secrets) for name, value in data.items()}
    elif isinstance(data, list):
        result = [mask_data(value, secrets) for value in data]
    return cast(T, result)


@contextmanager
def mask_raised_errors(secrets: list[str]) -> Iterator[None]:
    """Masks secrets in what is raised inside, and in what that came from: engines and their clients say in errors what
    they were given.
    """
    try:
        yield
    except Exception as error:
        mask_error(error, secrets)
        raise


def mask_error(error: BaseException, secrets: list[str]) -> None:
    """Mask secrets in the texts of an error and of what it came from."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause.args = tuple(mask(part, secrets) if isinstance(part, str) else part for part in cause.args)
        cause = cause.__cause__ or cause.__context__
