"""Turns joined for a trainer."""

from __future__ import annotations

import pytest

from hermes_agent.messages import TurnTokens
from hermes_agent.tokens import TokenSequence, sequence, sequences

FIRST = TurnTokens((1, 2), (3, 4), (-0.5, -0.25))
SECOND = TurnTokens((5,), (6,), (-1.0,))
AGAIN = TurnTokens((1, 7), (8,), (-2.0,), restarts=True)


def test_prompts_are_masked_and_marked() -> None:
    assert sequence([FIRST, SECOND]) == TokenSequence(
        ids=[1, 2, 3, 4, 5, 6], mask=[-100, -100, 3, 4, -100, 6], logprobs=[1.0, 1.0, -0.5, -0.25, 1.0, -1.0]
    )


def test_without_logprobs_of_one_turn_there_are_none() -> None:
    joined = sequence([FIRST, TurnTokens((5,), (6,), None)])
    assert (joined.mask, joined.logprobs) == ([-100, -100, 3, 4, -100, 6], None)


def test_turns_that_restart_are_no_one_sequence() -> None:
    with pytest.raises(ValueError, match=r"turn 3 of 3 restarts .* sequences\(\)"):
        sequence([FIRST, SECOND, AGAIN])
    assert sequences([FIRST, SECOND, AGAIN]) == [sequence([FIRST, SECOND]), sequence([AGAIN])]
    assert sequence([AGAIN, SECOND]).ids == [1, 7, 8, 5, 6]


def test_no_turn_is_no_sequence() -> None:
    with pytest.raises(ValueError, match="no turn"):
        sequence([])
    assert sequences([]) == []
