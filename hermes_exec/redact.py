"""Masking of secrets from configurations in texts, data and errors."""

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
"""Minimum lengths of a line that is masked by itself, and of a secret whose halves are masked too."""
_LINE_END = re.compile(r"(?:\r|\n|\\r|\\n)+")  # also escaped, as a one-line variable holds a multi-line key


def secret_values(*configs: BaseModel) -> list[str]:
    """Return the spellings of all secrets in configurations of pools and backends, for `mask`."""
    return spellings({value for config in configs for value in _secrets_in(config)})


def spellings(secrets: Iterable[str]) -> list[str]:
    """Return secrets and each longer line of them, longest first, raw and as JSON writes them up to three times.

    Twice: a program prints JSON, and the result of its call is JSON. Three times: code of the model prints such a
    result.
    """
    written = [{part for secret in secrets for part in (secret, secret.strip("\r\n"), *_lines(secret))}]
    for _ in range(3):
        written.append(
            {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in written[-1] for ascii_only in (True, False)}
        )
    return sorted(set().union(*written) - {""}, key=len, reverse=True)


def _lines(secret: str) -> list[str]:
    """Return the lines that would reveal a secret of several lines, without their indentation."""
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
    """Return a text with the spellings of `secret_values` masked.

    A secret that was cut is masked if at least half of it is left, from its first or up to its last character.
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    for secret in secrets:  # after the whole ones, which may begin with the half of another
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
    """Return JSON data with secrets masked in every text; names of fields stay."""
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
    """Mask secrets in exceptions raised inside, and in their causes: engines and clients quote their arguments in
    errors.
    """
    try:
        yield
    except Exception as error:
        mask_error(error, secrets)
        raise


def mask_error(error: BaseException, secrets: list[str]) -> None:
    """Mask secrets in the texts of an error and of its causes."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause.args = tuple(mask(part, secrets) if isinstance(part, str) else part for part in cause.args)
        cause = cause.__cause__ or cause.__context__
