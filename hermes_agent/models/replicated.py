"""One model behind several endpoints, such as replicas of an inference server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hermes_agent.errors import EndpointAway
from hermes_agent.messages import Completion, Message
from hermes_agent.models.gate import EndpointStatus
from hermes_agent.models.openai import OpenAIModel
from hermes_exec.errors import ConfigError

_PATIENCE_S = 10.0
"""How long requests wait for an endpoint that is away while another one is up."""
_PROBE_INTERVAL_S = 30.0
"""The pause between episodes that find out whether an endpoint is back."""


class ReplicatedModel:
    """A model behind several endpoints. Each episode stays on one, which has the beginning of its prompts in its cache.

    An episode begins on the endpoint with the fewest requests, served and waiting. If its endpoint has been away for
    10 s and another one is up, the requests that wait move to the other one, and the episode stays there. Every 30 s
    an episode begins on an endpoint that is away, to find out whether it is back. While all endpoints are away,
    requests wait as with a single one.

    Args:
        models: The same model at each endpoint. They belong to this object.

    Raises:
        ConfigError: If there is no model, if their names differ, or if two have the same endpoint.
    """

    def __init__(self, models: Sequence[OpenAIModel]) -> None:
        if not models:
            raise ConfigError("a ReplicatedModel needs at least one model")
        if len(names := {model.model for model in models}) > 1:
            raise ConfigError(f"the endpoints of a ReplicatedModel serve one model, not {', '.join(sorted(names))}")
        urls = [model.base_url for model in models]
        if twice := [url for url in urls if urls.count(url) > 1]:
            raise ConfigError(f"base_url: {twice[0]} is given twice")
        self.model = models[0].model
        self._replicas = [_Replica(model) for model in models]
        for replica in self._replicas:
            replica.model.move_waiting_if(partial(self._should_leave, replica))

    @property
    def status(self) -> EndpointStatus:
        """The sums of all endpoints, and the state of each in `parts`. It is away if all are."""
        parts = tuple((replica.model.base_url, replica.model.status) for replica in self._replicas)
        each = [status for _, status in parts]
        rates = [status.rate for status in each if status.rate is not None]
        away = [status for status in each if status.away_s is not None]
        latest = min(away, key=lambda status: status.away_s or 0.0) if len(away) == len(each) else None
        return EndpointStatus(
            sum(status.in_flight for status in each),
            sum(status.waiting for status in each),
            sum(rates) if len(rates) == len(each) else None,
            None if latest is None else latest.away_s,
            "" if latest is None else latest.reason,
            parts,
        )

    def session(self, tools: Sequence[Mapping[str, Any]]) -> _ReplicatedSession:
        """Return a session, whose requests go to one endpoint."""
        return _ReplicatedSession(self, tools)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        """Return one completion, from the endpoint with the fewest requests; see `Model.complete`."""
        return await self.session(tools).complete(messages, **sampling)

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can be used again afterwards."""
        for replica in self._replicas:
            await replica.model.aclose()

    def choose(self, but: _Replica | None = None) -> _Replica | None:
        """Return the endpoint for an episode. `but` is an endpoint that it leaves: return another one that is up, or
        None.
        """
        up = [replica for replica in self._replicas if not replica.is_away and replica is not but]
        if but is not None:
            return min(up, key=_load, default=None)
        now = time.monotonic()
        due = [replica for replica in self._replicas if replica.is_away and replica.is_due(now)]
        chosen = due[0] if up and due else min(up or self._replicas, key=_load)
        chosen.tried_at = now
        return chosen

    def note_recovery(self) -> None:
        """Let requests that wait for other endpoints move to the one that is back."""
        for replica in self._replicas:
            if replica.is_away:
                replica.model.move_waiting()

    def _should_leave(self, replica: _Replica) -> bool:
        """Return whether requests that wait for this endpoint should move to another one."""
        away_s = replica.model.status.away_s
        if away_s is None or away_s < _PATIENCE_S:
            return False
        return any(not other.is_away for other in self._replicas if other is not replica)


class _Replica:
    """An endpoint with the number of its episodes."""

    def __init__(self, model: OpenAIModel) -> None:
        self.model = model
        self.sessions = 0
        self.tried_at = 0.0

    @property
    def is_away(self) -> bool:
        return self.model.status.away_s is not None

    def is_due(self, now: float) -> bool:
        """Return whether an episode may find out whether the endpoint is back."""
        return now - self.tried_at >= _PROBE_INTERVAL_S


def _load(replica: _Replica) -> tuple[int, int]:
    status = replica.model.status
    return status.in_flight + status.waiting, replica.sessions


class _ReplicatedSession:
    """An episode on one endpoint."""

    def __init__(self, replicated: ReplicatedModel, tools: Sequence[Mapping[str, Any]]) -> None:
        self._replicated, self._tools = replicated, tools
        self._replica: _Replica | None = None

    async def complete(self, messages: Sequence[Message], **sampling: object) -> Completion:
        """Return one completion; see `ModelSession.complete`."""
        replica = self._replica or self._begin(self._replicated.choose())
        while True:
            was_away = replica.is_away
            try:
                completion = await replica.model.complete(messages, self._tools, **sampling)
            except EndpointAway:
                other = self._replicated.choose(but=replica)
                if other is None:
                    raise
                replica = self._begin(other)
            else:
                if was_away:
                    self._replicated.note_recovery()
                return completion

    async def aclose(self) -> None:
        """End the episode."""
        if self._replica is not None:
            self._replica.sessions -= 1
            self._replica = None

    def _begin(self, replica: _Replica | None) -> _Replica:
        assert replica is not None
        if self._replica is not None:
            self._replica.sessions -= 1
        replica.sessions += 1
        self._replica = replica
        return replica
