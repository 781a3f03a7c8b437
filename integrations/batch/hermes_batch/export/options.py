"""The settings of an export, validated before anything is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Self, get_args

from hermes_batch.record import Solved
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

Format = Literal["openai", "sharegpt", "atif", "hf-trace", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
OUTCOMES: tuple[str, ...] = get_args(Solved)
DEDUPE: tuple[str, ...] = ("prompt", "first-call")
PER_PROMPT: tuple[str, ...] = ("shortest", "best")
_SPLIT_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_ALL = "train"
_REST = "test"
_REPEATED = re.compile(r"-\d+\Z")
"""The end of a group whose row is in the data more than once."""


@dataclass(frozen=True)
class ExportOptions:
    """The settings of `export_records`, which describes them."""

    to: str
    only: tuple[str, ...] = ()
    min_reward: float | None = None
    per_prompt: int | str | None = None
    max_tokens: int | None = None
    dedupe: str | None = None
    failed_calls: bool = True
    reasoning: bool = True
    splits: Mapping[str, float] | None = None
    include_untrainable: bool = False

    @classmethod
    def of(
        cls,
        to: str,
        *,
        only: Sequence[str],
        min_reward: float | None,
        per_prompt: int | str | None,
        max_tokens: int | None,
        dedupe: str | None,
        failed_calls: bool,
        reasoning: bool,
        split: Mapping[str, float] | None,
        include_untrainable: bool,
    ) -> Self:
        """Return validated settings.

        Raises:
            ConfigError: If a value is unknown, out of range, or contradicts another one.
        """
        _check_word("to", to, FORMATS)
        for word in only:
            _check_word("only", word, OUTCOMES)
        if "unscored" in only and not include_untrainable:
            raise ConfigError("only: unscored records do not measure the model; add include_untrainable to export them")
        if min_reward is not None and min_reward != min_reward:
            raise ConfigError("min_reward must be a number, not nan")
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, not {max_tokens}")
        if dedupe is not None:
            _check_word("dedupe", dedupe, DEDUPE)
        return cls(
            to=to,
            only=tuple(only),
            min_reward=min_reward,
            per_prompt=_parse_per_prompt(per_prompt),
            max_tokens=max_tokens,
            dedupe=dedupe,
            failed_calls=failed_calls,
            reasoning=reasoning,
            splits=_complete_splits(split),
            include_untrainable=include_untrainable,
        )

    def split_of(self, group: str) -> str:
        """Return the split of a group. Equal groups, and rows that are in the data several times, share a split.

        It depends only on the group: a prompt never moves to another split as the data grows.
        """
        if self.splits is None:
            return _ALL
        point = int.from_bytes(sha256(_REPEATED.sub("", group).encode()).digest()[:8]) / 2**64
        for name, share in self.splits.items():
            if point < share:
                return name
            point -= share
        return name


def parse_splits(texts: Sequence[str]) -> dict[str, float] | None:
    """Return the shares of `NAME=SHARE` texts. None if there are none.

    Raises:
        ConfigError: If a text has another form or repeats a name.
    """
    splits: dict[str, float] = {}
    for text in texts:
        name, _, share = text.partition("=")
        if name in splits:
            raise ConfigError(f"split: {name} is given twice")
        try:
            splits[name] = float(share)
        except ValueError:
            raise ConfigError(f"split must be NAME=SHARE, such as train=0.95, not {text!r}") from None
    return splits or None


def _complete_splits(split: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the splits with one for the rest, if their shares do not add up to 1."""
    if split is None:
        return None
    for name, share in split.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise ConfigError(f"split: {name!r} is no name; use lower case letters, digits and _, such as train")
        if not 0 < share <= 1:
            raise ConfigError(f"split: the share of {name} must be above 0 and at most 1, not {share}")
    rest = 1 - sum(split.values())
    if rest < -1e-9:
        raise ConfigError(f"split: the shares add up to {sum(split.values()):g}, which is more than 1")
    if rest <= 1e-9:
        return dict(split)
    other = next((name for name in (_REST, _ALL) if name not in split), None)
    if other is None:
        raise ConfigError(f"split: the shares add up to {1 - rest:g}; give them all, so that they add up to 1")
    return {**split, other: rest}


def _parse_per_prompt(value: int | str | None) -> int | str | None:
    if value is None or value in PER_PROMPT:
        return value
    number = int(value) if isinstance(value, int) or value.isdecimal() else 0
    if number < 1:
        raise ConfigError(f"per_prompt must be a number from 1, {' or '.join(PER_PROMPT)}, not {value!r}")
    return number


def _check_word(name: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise ConfigError(f"{name}: {word!r} is unknown; {nearest(word, words)}")
