"""Failures that end an attempt at a prompt without being its result: refusals, outages and failed slots."""

from __future__ import annotations

from hermes_agent import CheckFailed, EndpointAway, EndpointFailing, EpisodeError, RolloutResult
from hermes_exec import ErrorCause, HostDiskFull


def find_refusal(result: RolloutResult) -> EpisodeError | None:
    """Return the error of a request that can never succeed, for example with a refused key or image, or None."""
    episode = result.episode
    if episode is None or episode.finish != "model_error" or episode.cause is not ErrorCause.CONFIG:
        return None
    return episode.failure


def find_outage(result: RolloutResult) -> EpisodeError | None:
    """Return the error that kept the model from answering because its endpoint was down for too long, or None."""
    episode = result.episode
    if episode is None or episode.finish != "model_error":
        return None
    error = episode.errors[-1]
    return error if error.kind in {EndpointAway.__name__, EndpointFailing.__name__} else None


def is_infrastructure_failure(result: RolloutResult) -> bool:
    """Return whether the slot failed, so that another slot may succeed. A check that exceeds its time limit would do so
    in every slot.
    """
    failed = result.finish == "infra" and result.cause is ErrorCause.INFRA
    return failed and not isinstance(result.exception, CheckFailed)


def find_full_disk(result: RolloutResult) -> HostDiskFull | None:
    """Return the error of a disk that every prompt needs: the one of this host, or of all sandboxes; or None."""
    error = result.exception
    return error if isinstance(error, HostDiskFull) and error.sandbox is None else None
