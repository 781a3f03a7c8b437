"""Turns joined to what a trainer takes: ids, the mask of those that were sampled, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hermes_agent.messages import TurnTokens

NOT_SAMPLED = -100
"""In a mask: the id at this place was not sampled by the model (the index that cross entropy losses ignore)."""

NO_LOGPROB = 1.0
"""In log-probabilities: the id at this place was not sampled. No log-probability is above 0; atropos and the trainers
behind it (example_trainer, tinker-atropos) take this value for "prompt".
"""


class TokenSequence(NamedTuple):
    """Parallel lists: the `ids` in order, `mask` with each sampled id at its place and -100 elsewhere, `logprobs` with
    natural logarithms at the places of sampled ids and 1.0 elsewhere (None: the server gave none in some turn).
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None


def sequence(turns: Sequence[TurnTokens]) -> TokenSequence:
    """All turns of an episode as one sequence, which ends with sampled ids.

    Raises ValueError when there is no turn, and when one after the first restarts: the ids before it are no prefix of
    its prompt. `sequences` cuts there.
    """
    if not turns:
        raise ValueError("there is no turn, so there are no tokens")
    for number, turn in enumerate(turns, 1):
        if turn.restarts and number > 1:
            raise ValueError(
                f"turn {number} of {len(turns)} restarts the prompt, so the turns are not one sequence; sequences() "
                "gives one for each part"
            )
    return _join_turns(turns)


def sequences(turns: Sequence[TurnTokens]) -> list[TokenSequence]:
    """The turns as one sequence for each part between restarts (such as a compaction of the history), in order."""
    cuts = [*(place for place, turn in enumerate(turns) if turn.restarts or place == 0), len(turns)]
    return [_join_turns(turns[start:end]) for start, end in pairwise(cuts)]


def _join_turns(turns: Sequence[TurnTokens]) -> TokenSequence:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in turns:
        ids += [*turn.added, *turn.ids]
        mask += [*[NOT_SAMPLED] * len(turn.added), *turn.ids]
        logprobs += [*[NO_LOGPROB] * len(turn.added), *(turn.logprobs or ())]
    complete = all(turn.logprobs is not None for turn in turns)
    return TokenSequence(ids, mask, logprobs if complete else None)
