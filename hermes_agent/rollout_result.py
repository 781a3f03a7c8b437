"""The outcome of a rollout: its episode, its score, and the cause of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from hermes_agent.artifacts import CollectedFiles
from hermes_agent.episode import Episode, EpisodeError
from hermes_agent.scoring import Verdict
from hermes_exec import KillReceipt
from hermes_exec.errors import ErrorCause

Stage = Literal["queue", "setup", "model", "tools", "check"]
"""What a rollout does, as in `Timings`."""
OnStage = Callable[[Stage], None]


@dataclass(frozen=True)
class Timings:
    """The seconds of a rollout, by what it did.

    Attributes:
        queue_s: Waiting for a slot, with the start of its sandbox if it needed one.
        setup_s: Putting the task's files in, and `prepare`.
        model_s: Completions, with outages of the endpoint.
        tools_s: Tool calls and their hooks.
        check_s: Scoring: copying artifacts, ending the model's processes, sealing the work, and the check.
    """

    queue_s: float = 0.0
    setup_s: float = 0.0
    model_s: float = 0.0
    tools_s: float = 0.0
    check_s: float = 0.0


@dataclass(frozen=True)
class RolloutResult:
    """The outcome of a rollout.

    Attributes:
        episode: The episode. None if it never began.
        verdict: The score. None if scoring failed, or if the end is no measure of the model.
        error: The failure that prevented an episode or a score, besides the errors of the episode itself.
        exception: The same failure as it was raised.
        cause: The cause of the end.
        isolation: The isolation level of the slot. Empty: no slot.
        sandbox: The sandbox of the slot. Empty: no slot.
        unavailable: Tools of its toolsets that this package does not have.
        killed: The model's last processes, which scoring ended.
        seconds: The duration of the rollout.
        timings: The parts of `seconds`.
        started: When the rollout began, in UTC. None: it did not.
        ended: When it ended.
        collected: The files that were copied out of the slot (`Rollout.collect`).
    """

    episode: Episode | None
    verdict: Verdict | None = None
    error: EpisodeError | None = None
    exception: Exception | None = None
    cause: ErrorCause = ErrorCause.INFRA
    isolation: str = ""
    sandbox: str = ""
    unavailable: tuple[str, ...] = ()
    killed: KillReceipt | None = None
    seconds: float = 0.0
    timings: Timings = Timings()
    started: datetime | None = None
    ended: datetime | None = None
    collected: CollectedFiles = field(default_factory=CollectedFiles)

    @property
    def trainable(self) -> bool:
        """Whether the score is a measure of the model."""
        return self.episode is not None and self.episode.trainable and self.error is None

    @property
    def finish(self) -> str:
        """The episode's `finish`, or `infra` if something else prevented a score."""
        return "infra" if self.episode is None or self.error is not None else self.episode.finish

    @property
    def failure(self) -> EpisodeError | None:
        """The error that prevents a score: `error`, or the error that ended the episode. None if there is none."""
        return self.error if self.error is not None or self.episode is None else self.episode.failure

    @property
    def solved(self) -> bool | None:
        """Whether the task was solved. None if nothing was scored."""
        return None if self.verdict is None or not self.trainable else self.verdict.solved

    @property
    def reward(self) -> float | None:
        """The reward. None if nothing was scored: never train on it."""
        return None if self.verdict is None or not self.trainable else self.verdict.reward
