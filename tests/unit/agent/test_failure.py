"""Which of an episode's errors ended it."""

from __future__ import annotations

from typing import Literal

import pytest

from hermes_agent import Episode, EpisodeError, RolloutResult, TokenUsage
from hermes_agent.episode import Finish
from hermes_exec.errors import ErrorCause


def error(where: Literal["model", "call", "tool", "infra"], kind: str) -> EpisodeError:
    return EpisodeError(1, where, kind, "")


DIED, CLOSED, ENDED = error("infra", "SandboxDied"), error("infra", "SlotClosed"), error("call", "ended")
UNREAD, DOWN, MALFORMED = error("model", "unread"), error("model", "ModelError"), error("call", "malformed_call")


def episode(finish: Finish, *errors: EpisodeError, trainable: bool = False) -> Episode:
    return Episode([], 1, finish, (), (), TokenUsage(), ErrorCause.INFRA, trainable, errors, (), 0.0)


@pytest.mark.parametrize(
    ("finish", "errors", "ended"),
    [
        ("infra", (MALFORMED, UNREAD, DIED, CLOSED, ENDED, ENDED), DIED),
        ("model_error", (UNREAD, MALFORMED, DOWN), DOWN),
        ("context", (UNREAD, DOWN), DOWN),
        ("answered", (UNREAD, MALFORMED), UNREAD),
        ("deadline", (UNREAD, ENDED), None),
        ("cancelled", (ENDED,), None),
        ("content_filter", (UNREAD,), None),
        ("empty", (MALFORMED,), None),
    ],
)
def test_error_that_ended_an_episode(
    finish: Finish, errors: tuple[EpisodeError, ...], ended: EpisodeError | None
) -> None:
    assert episode(finish, *errors).failure == ended
    assert RolloutResult(episode(finish, *errors)).failure == ended


def test_episode_that_may_be_scored_has_no_failure_but_its_score_may_have() -> None:
    done = episode("answered", UNREAD, MALFORMED, trainable=True)
    assert RolloutResult(done).failure is None
    assert RolloutResult(done, error=DIED).failure == DIED
    assert RolloutResult(None, error=DIED).failure == DIED
