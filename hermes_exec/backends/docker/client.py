"""The Docker SDK's client, located as the SDK does it, with a deadline for each answer."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
import requests
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.context import ContextAPI
from docker.utils import kwargs_from_env

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.deadline import RESPONSE_DEADLINE
from hermes_exec.backends.docker.streaming_response import CURRENT_RESPONSE
from hermes_exec.backends.helpers import blank_others
from hermes_exec.errors import BackendUnavailable

MIN_TIMEOUT_S = 0.1
"""Least timeout of a request, also past the deadline: enough for an engine that answers."""


class DeadlineApi(docker.APIClient):
    """An API client that computes a timeout for each request, since the SDK reads this attribute each time. Streaming
    responses can be hung up on.
    """

    _timeout_s = math.inf

    @property  # type: ignore[override]  # the stubs declare an int, which the SDK passes to requests unchanged
    def timeout(self) -> float:
        """Longest time for one answer, in seconds."""
        return max(MIN_TIMEOUT_S, min(self._timeout_s, RESPONSE_DEADLINE.get() - time.monotonic()))

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, and attach a streaming response to `CURRENT_RESPONSE`."""
        response = super().send(request, **options)
        answer = CURRENT_RESPONSE.get()
        if answer is not None and options.get("stream"):
            answer.attach(response)
        return response


class DeadlineClient(docker.DockerClient):
    """The SDK's client with a `DeadlineApi`."""

    def __init__(self, **options: Any) -> None:
        self.api = DeadlineApi(**options)


def connect(config: DockerConfig, connections: int) -> DeadlineClient:
    """Return a client of the engine that the configuration, the environment or the context of Docker's clients names.

    Raises:
        BackendUnavailable: If the settings are unusable, or the engine's address allows no streams.
        OSError, docker.errors.DockerException: If the engine is unreachable.
    """
    with readable_settings():
        settings = {"base_url": config.base_url} if config.base_url else kwargs_from_env()
        if "base_url" not in settings and hasattr(ContextAPI, "kwargs_from_context"):
            settings = {**ContextAPI.kwargs_from_context(), **settings}
        base_url = settings.pop("base_url", None) or DEFAULT_UNIX_SOCKET
        if settings.get("tls") or base_url.startswith(("https://", "ssh://")):
            raise BackendUnavailable(
                f"no stream into a sandbox goes over TLS or ssh as {base_url} is reached: forward the engine's socket "
                "(ssh -N -L /tmp/engine.sock:/var/run/docker.sock HOST) and set base_url='unix:///tmp/engine.sock'"
            )
        timeout_s = max(1, round(config.api_timeout_s))
        _reach(base_url, timeout_s)
        client = DeadlineClient(
            base_url=base_url,
            timeout=timeout_s,
            version="auto",
            max_pool_size=connections,
            credstore_env=blank_others(config.helper_environment("DOCKER_.*")),
        )
        if config.docker_config is not None:
            client.api.reload_config(config.docker_config)
        return client


@contextmanager
def readable_settings() -> Iterator[None]:
    """Turn the SDK's errors over broken settings in its environment and files into BackendUnavailable."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise BackendUnavailable(
            "the settings of Docker's clients cannot be used; look at DOCKER_HOST, DOCKER_CONFIG and its config.json "
            f"({type(error).__name__}: {error})"
        ) from error


def _reach(base_url: str, timeout_s: float) -> None:
    """Raise OSError if no engine listens at a unix socket, because the SDK would leak its own socket."""
    scheme, _, path = base_url.removeprefix("http+").partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(timeout_s)
            try:
                probe.connect(f"/{path.lstrip('/')}")
            except OSError as error:
                raise OSError(error.errno, error.strerror, base_url) from None
