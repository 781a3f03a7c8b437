"""Groups of rollouts: finished rollouts, groups kept after cancellation, and the data that a trainer receives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atroposlib.envs.base import ScoredDataGroup

from hermes_agent import Message, RolloutResult
from hermes_agent.messages import INVENTED_ANSWER
from hermes_agent.rewards import show_value
from hermes_agent.tokens import TokenSequence, sequence
from hermes_exec import ConfigError

_MAX_KEPT = 64


class FinishedRollout(NamedTuple):
    """A rollout with its reward and its token ids as one sequence."""

    result: RolloutResult
    tokens: TokenSequence
    reward: float


@dataclass
class Group:
    """The rollouts of an item so far. `step` is the trainer's step when the first rollout started, and `rerolls` counts
    the rollouts that ran again by cause.
    """

    number: int
    toolsets: tuple[str, ...]
    step: int
    done: list[FinishedRollout] = field(default_factory=list)
    rerolls: Counter[str] = field(default_factory=Counter)


class KeptGroups:
    """Groups that were cancelled, as trainers do when they have enough. Their finished rollouts are reused if the item
    returns within `max_steps` steps of the trainer.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._kept: list[tuple[object, Group]] = []

    def keep(self, item: object, group: Group) -> None:
        """Keep a group if any of its rollouts is finished."""
        if group.done:
            self._kept.append((item, group))
            del self._kept[:-_MAX_KEPT]

    def take(self, item: object, step: int) -> Group | None:
        """Remove and return the kept group of an item, or return None if there is none or it is too old."""
        self._kept = [each for each in self._kept if step - each[1].step <= self._max_steps]
        number = next((number for number, (owner, _) in enumerate(self._kept) if owner is item), None)
        return None if number is None else self._kept.pop(number)[1]


def finish_rollout(result: RolloutResult) -> FinishedRollout | None:
    """Return the rollout for training, or None if it has no reward or no episode.

    None is also returned if the token ids are not one sequence because the answer was cut where it imitated messages of
    others.

    Raises:
        ConfigError: If the model returned no token ids, or if the ids are not one sequence for another reason.
    """
    if result.reward is None or result.episode is None:
        return None
    if result.episode.tokens is None:
        raise ConfigError("the model returned no token ids")
    cut = any(error.kind == INVENTED_ANSWER for error in result.episode.errors)
    if cut and any(turn.restarts for turn in result.episode.tokens[1:]):
        return None
    try:
        return FinishedRollout(result, sequence(result.episode.tokens), result.reward)
    except ValueError as error:
        raise ConfigError(f"an episode is not one sequence of ids, as trainers require: {error}") from error


def make_scored_data(
    done: Sequence[FinishedRollout], generation_params: Mapping[str, Any], *, phase: int
) -> ScoredDataGroup:
    """Return the group in the trainers' format: parallel lists, with natural logarithms in `inference_logprobs` and 1.0
    for ids that were not sampled.

    For a chat server, `inference_logprobs` is None and `group_overrides` is `{"phase": 1}`.

    Source of the format: `ScoredData` in `atroposlib/api/server.py` (0.4.0), and `example_trainer/data.py` in
    NousResearch/atropos, which reads `generation_params["temperature"]`.
    """
    logprobs = [rollout.tokens.logprobs for rollout in done]
    return {
        "tokens": [rollout.tokens.ids for rollout in done],
        "masks": [rollout.tokens.mask for rollout in done],
        "scores": [rollout.reward for rollout in done],
        "advantages": None,
        "ref_logprobs": None,
        "messages": [_messages(rollout.result) for rollout in done],
        "generation_params": dict(generation_params),
        "inference_logprobs": [each for each in logprobs if each is not None] if phase == 2 else None,
        # Not None: atroposlib looks up `group_size` in it.
        "group_overrides": {} if phase == 2 else {"phase": phase},
        "overrides": None,
        "images": None,
        "distill_token_ids": None,
        "distill_logprobs": None,
    }


def _messages(result: RolloutResult) -> list[Message]:
    """Return the conversation. Each message has a content, which the atropos server requires. Unpaired surrogates,
    which occur in datasets and in model output, are replaced, because neither the server nor a file accepts them.
    """
    assert result.episode is not None
    return [to_json({**message, "content": message.get("content") or ""}) for message in result.episode.messages]


_WITHOUT_FRACTION = frozenset({int, bool, str, type(None)})
_NUMBERS = frozenset({int, float})


def to_json(data: Any) -> Any:  # noqa: ANN401 - JSON
    """Return data as plain JSON types: numbers, arrays and tensors of numpy and torch become numbers and lists. Values
    that cannot be converted are returned unchanged; `find_odd_value` reports them.
    """
    if isinstance(data, str):
        return str(data.encode("utf-8", "replace").decode())
    if isinstance(data, Mapping):
        return {to_json(name): to_json(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        # Not the obvious code: see docs/why-not-obvious.md ("Token ids are checked as whole lists").
        return list(data) if set(map(type, data)) <= _NUMBERS else [to_json(value) for value in data]
    if data is None or isinstance(data, int):
        return data
    try:
        listed = data.tolist() if hasattr(data, "tolist") else data
        if isinstance(listed, list):
            return to_json(listed)
        return listed if isinstance(listed, int) or not hasattr(listed, "__float__") else float(listed)
    except Exception:  # noqa: BLE001 - foreign objects, such as a tensor without data, may raise anything
        return data


def find_odd_value(data: object, path: str = "") -> str | None:
    """Return a description of the first value that is not a finite number or not a JSON type, or None. The atropos
    server accepts NaN, but then it never sends its trainer another batch.
    """
    if isinstance(data, float):
        return None if math.isfinite(data) else f"{path} is {data}, which is not a finite number"
    if isinstance(data, list | tuple):
        kinds = set(map(type, data))
        if kinds <= _WITHOUT_FRACTION or (kinds == {float} and all(map(math.isfinite, data))):
            return None
        odd = (find_odd_value(value, f"{path}[{number}]") for number, value in enumerate(data))
        return next(filter(None, odd), None)
    if isinstance(data, Mapping):
        odd = (find_odd_value(value, f"{path}.{name}" if path else str(name)) for name, value in data.items())
        return next(filter(None, odd), None)
    if data is None or isinstance(data, int | str):
        return None
    return f"{path} is {show_value(data)}, which is not a JSON type"


def find_problem(group: Mapping[str, Any], group_size: int) -> str | None:
    """Return a description of the first error in a group, also after `postprocess_histories`, or None if it can be
    sent. The server accepts lists of any length, and one malformed group blocks every later batch.
    """
    odd = find_odd_value(group)
    if odd is not None:
        return odd
    tokens, masks = group.get("tokens") or [], group.get("masks") or []
    if len(tokens) != group_size:
        return f"it has {len(tokens)} sequences instead of {group_size}"
    for name in ("masks", "scores", "inference_logprobs", "messages", "advantages", "ref_logprobs"):
        values = group.get(name)
        if values is None and name not in ("masks", "scores"):
            continue
        if values == [] and name in ("advantages", "ref_logprobs"):  # atroposlib's value for none
            continue
        if len(values or ()) != len(tokens):
            return f"its {name} are of {len(values or ())} sequences instead of {len(tokens)}"
    for number, ids in enumerate(tokens):
        logprobs = (group.get("inference_logprobs") or [ids] * group_size)[number]
        if not len(ids) == len(masks[number]) == len(logprobs):
            return f"sequence {number} has {len(ids)} ids, a mask of {len(masks[number])}, {len(logprobs)} logprobs"
    return _find_wrong_type(group)


def _find_wrong_type(group: Mapping[str, Any]) -> str | None:
    """Return a description of the first value whose type the atropos server rejects with HTTP 422, which would lose the
    group; else None.
    """
    if not set(map(type, group["scores"])) <= _NUMBERS | {bool}:
        return f"its scores are {show_value(group['scores'])}, not numbers"
    kinds = {"tokens": {int}, "masks": {int}, **dict.fromkeys(("inference_logprobs", "advantages"), _NUMBERS)}
    for name, allowed in kinds.items():
        for number, values in enumerate(group.get(name) or ()):
            if not isinstance(values, list | tuple) or not set(map(type, values)) <= allowed:
                return f"{name}[{number}] is not a list of {'whole ' if allowed == {int} else ''}numbers"
    return None
