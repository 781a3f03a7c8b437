"""Joins turns to the input of a trainer: ids, the mask of the sampled ids, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hermes_agent.messages import TurnTokens

NOT_SAMPLED = -100
"""In a mask: the model did not sample the id at this place (the index that cross entropy losses ignore)."""

NO_LOGPROB = 1.0
"""In log-probabilities: the model did not sample the id at this place. No log-probability is above 0; atropos and its
trainers (example_trainer, tinker-atropos) read this value as "prompt".
"""


class TokenSequence(NamedTuple):
    """Parallel lists of tokens.

    Attributes:
        ids: The ids in order.
        mask: Each sampled id at its place, and -100 elsewhere.
        logprobs: Natural logarithms at the places of sampled ids, and 1.0 elsewhere. None: the server returned none in
            some turn.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None


def sequence(turns: Sequence[TurnTokens]) -> TokenSequence:
    """Return all turns of an episode as one sequence, which ends with sampled ids.

    Raises:
        ValueError: If there is no turn, or a turn after the first restarts: the ids before it are no prefix of its
            prompt. `sequences` cuts there.
    """
    if not turns:
        raise ValueError("there is no turn, so there are no tokens")
    for number, turn in enumerate(turns, 1):
        if turn.restarts and number > 1:
            raise ValueError(
                f"turn {number} of {len(turns)} restarts the prompt, so the turns are not one sequence; sequences() "
                "gives one for each part"
            )
    return join_turns(turns)


def sequences(turns: Sequence[TurnTokens]) -> list[TokenSequence]:
    """Return one sequence for each part between restarts (such as a compaction of the history), in order."""
    cuts = [*(place for place, turn in enumerate(turns) if turn.restarts or place == 0), len(turns)]
    return [join_turns(turns[start:end]) for start, end in pairwise(cuts)]


def join_turns(turns: Sequence[TurnTokens]) -> TokenSequence:
    """Return turns one after the other, whatever `restarts` they have."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in turns:
        ids += [*turn.added, *turn.ids]
        mask += [*[NOT_SAMPLED] * len(turn.added), *turn.ids]
        logprobs += [*[NO_LOGPROB] * len(turn.added), *(turn.logprobs or ())]
    complete = all(turn.logprobs is not None for turn in turns)
    return TokenSequence(ids, mask, logprobs if complete else None)
