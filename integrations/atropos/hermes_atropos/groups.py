"""Groups of rollouts: finished rollouts, groups kept after cancellation, and the data that a trainer receives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from atroposlib.envs.base import ScoredDataGroup

from hermes_agent import Episode, Message, RolloutResult
from hermes_agent.gateway import Captured, SequenceScope
from hermes_agent.messages import INVENTED_ANSWER
from hermes_agent.rewards import show_value
from hermes_agent.tokens import TokenSequence, sequence
from hermes_agent.tokens.sequence import NOT_SAMPLED
from hermes_exec import ConfigError

_MAX_KEPT = 64


class TrainedSequence(NamedTuple):
    """A sequence for the trainer, and its conversation."""

    tokens: TokenSequence
    messages: Sequence[Message]


class FinishedRollout(NamedTuple):
    """A rollout with its reward and its sequences: one, or several of a program. `share` is the share of the sampled
    ids that they train.
    """

    result: RolloutResult
    sequences: Sequence[TrainedSequence]
    reward: float
    share: float = 1.0


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


def finish_rollout(result: RolloutResult, scope: SequenceScope = "main") -> FinishedRollout | None:
    """Return the rollout for training, or None if it has no reward or no episode.

    None is also returned if the token ids are not one sequence because the answer was cut where it imitated messages of
    others.

    Args:
        result: The rollout.
        scope: The conversations of a program that are trained.

    Raises:
        ConfigError: If the model returned no token ids, or if the ids are not one sequence for another reason.
    """
    episode = result.episode
    if result.reward is None or episode is None:
        return None
    if episode.tokens is None:
        raise ConfigError("the model returned no token ids")
    if episode.captured is not None:
        sequences = _select_sequences(episode, episode.captured, scope)
        trained = sum(number != NOT_SAMPLED for one in sequences for number in one.tokens.mask)
        return FinishedRollout(result, sequences, result.reward, trained / episode.captured.sampled_ids)
    cut = any(error.kind == INVENTED_ANSWER for error in episode.errors)
    if cut and any(turn.restarts for turn in episode.tokens[1:]):
        return None
    try:
        tokens = sequence(episode.tokens)
    except ValueError as error:
        raise ConfigError(f"an episode is not one sequence of ids, as trainers require: {error}") from error
    return FinishedRollout(result, [TrainedSequence(tokens, episode.messages)], result.reward)


def _select_sequences(episode: Episode, captured: Captured, scope: SequenceScope) -> list[TrainedSequence]:
    main = captured.main
    return [
        TrainedSequence(
            TokenSequence(one.ids, one.mask, one.logprobs),
            # Those of the episode are without the key of the gateway.
            episode.messages if one.last is main[-1] else one.last.conversation,
        )
        for one in captured.select(scope)
    ]


def make_scored_data(
    done: Sequence[FinishedRollout], generation_params: Mapping[str, Any], *, phase: int
) -> ScoredDataGroup:
    """Return the group in the trainers' format: parallel lists, with natural logarithms in `inference_logprobs` and 1.0
    for ids that were not sampled.

    For a chat server, `inference_logprobs` is None and `group_overrides` is `{"phase": 1}`.

    If a rollout has several sequences, each has the reward of its rollout, `group_overrides` has their number as
    `group_size`, and `advantages` has for each sampled id the reward minus the mean over the rollouts, divided by
    their standard deviation. Otherwise `advantages` is None, because the trainer's own are the same.

    Source of the format: `ScoredData` in `atroposlib/api/server.py` (0.4.0), and `example_trainer/data.py` in
    NousResearch/atropos, which reads `generation_params["temperature"]`.
    """
    members = [(rollout, one) for rollout in done for one in rollout.sequences]
    logprobs = [one.tokens.logprobs for _, one in members]
    # Not None: atroposlib looks up `group_size` in it.
    overrides = {} if phase == 2 else {"phase": phase}
    several = len(members) != len(done)
    return {
        "tokens": [one.tokens.ids for _, one in members],
        "masks": [one.tokens.mask for _, one in members],
        "scores": [rollout.reward for rollout, _ in members],
        "advantages": _advantages(done) if several else None,
        "ref_logprobs": None,
        "messages": [_messages(one.messages) for _, one in members],
        "generation_params": dict(generation_params),
        "inference_logprobs": [each for each in logprobs if each is not None] if phase == 2 else None,
        "group_overrides": {**overrides, "group_size": len(members)} if several else overrides,
        "overrides": None,
        "images": None,
        "distill_token_ids": None,
        "distill_logprobs": None,
    }


def _advantages(done: Sequence[FinishedRollout]) -> list[list[float]]:
    """Return the advantage of each id, with the formula of the example trainer, over rollouts in place of sequences."""
    rewards = [rollout.reward for rollout in done]
    mean, spread = fmean(rewards), max(pstdev(rewards), 1e-8)
    return [
        [0.0 if number == NOT_SAMPLED else (rollout.reward - mean) / spread for number in one.tokens.mask]
        for rollout in done
        for one in rollout.sequences
    ]


def _messages(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation. Each message has a content, which the atropos server requires. Unpaired surrogates,
    which occur in datasets and in model output, are replaced, because neither the server nor a file accepts them.
    """
    return [to_json({**message, "content": message.get("content") or ""}) for message in messages]


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
