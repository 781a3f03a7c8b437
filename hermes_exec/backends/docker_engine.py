"""The Docker engine behind its SDK: one client, blocking calls in threads, foreign errors mapped where they enter."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from hermes_exec.backends.handover import make_in_thread
from hermes_exec.config import DockerConfig
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError

if TYPE_CHECKING:
    from docker import DockerClient

T = TypeVar("T")
MAX_CALLS = 16
"""Calls of one backend that may be under way at once; each occupies a thread and a connection."""
REFUSAL = re.compile(r"unable to find (user|group) |network \S+ not found|could not select device driver")
"""What the daemon says, with another status than 400, of a configuration that can never be."""


class Engine:
    """One Docker engine. The SDK is imported, and the engine spoken to, when it is first needed."""

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: DockerClient | None = None
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)

    def client(self) -> DockerClient:
        """The client, made at the first call; blocking. Raises BackendUnavailable."""
        with self._lock:
            if self._client is None:
                self._client = _connect(self._config)
            return self._client

    async def call(self, work: Callable[[DockerClient], T]) -> T:
        """Do blocking work with the client in a thread. Errors of the engine become ours (see ``mapped``)."""
        return await anyio.to_thread.run_sync(partial(self.call_now, work), limiter=self._limiter)

    async def make(self, work: Callable[[DockerClient], T], unmake: Callable[[T], None]) -> T:
        """As ``call`` for work that makes something, which is unmade when nobody waits for it any more."""
        return await make_in_thread(partial(self.call_now, work), unmake, self._limiter)

    def call_now(self, work: Callable[[DockerClient], T]) -> T:
        """The same in the calling thread."""
        client = self.client()
        with mapped():
            return work(client)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _connect(config: DockerConfig) -> DockerClient:
    try:
        import docker
        from docker.constants import DEFAULT_UNIX_SOCKET
        from docker.utils import kwargs_from_env
    except ImportError as error:
        raise BackendUnavailable("the Docker SDK is not installed: pip install 'hermes-exec[docker]'") from error
    with mapped(), readable_settings():
        timeout = max(1, round(config.api_timeout_s))
        found = kwargs_from_env() if config.base_url is None else {"base_url": config.base_url}
        base_url = found.get("base_url") or DEFAULT_UNIX_SOCKET
        if found.get("tls") or base_url.startswith(("https://", "ssh://")):
            raise BackendUnavailable(
                f"no stream into a box goes over TLS or ssh as {base_url} is reached: forward the engine's socket "
                "(ssh -N -L /tmp/engine.sock:/var/run/docker.sock HOST) and set base_url='unix:///tmp/engine.sock'"
            )
        _reach(base_url)
        if config.base_url is None:
            client = docker.from_env(timeout=timeout, max_pool_size=MAX_CALLS + 4)
        else:
            client = docker.DockerClient(
                base_url=config.base_url, timeout=timeout, version="auto", max_pool_size=MAX_CALLS + 4
            )
        if config.docker_config is not None:
            client.api.reload_config(config.docker_config)
        return client


@contextmanager
def readable_settings() -> Iterator[None]:
    """What the SDK stumbles over in its environment and files, which it takes for right, becomes BackendUnavailable."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise BackendUnavailable(
            "the settings of Docker's clients cannot be used; look at DOCKER_HOST, DOCKER_CONFIG and its config.json "
            f"({type(error).__name__}: {error})"
        ) from error


def _reach(base_url: str) -> None:
    """OSError when nobody listens at a unix socket: the SDK would leave its own socket open on that."""
    scheme, _, path = base_url.removeprefix("http+").partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(f"/{path.lstrip('/')}")
            except OSError as error:
                raise OSError(error.errno, error.strerror, base_url) from None


@contextmanager
def mapped() -> Iterator[None]:
    """Errors of the SDK become errors of ours.

    Raises:
        BackendUnavailable: no daemon answers, or it refuses us; with the command that mends it.
        ImageError: an image is not there.
        ConfigError: the daemon says that what was asked for is wrong.
        LaunchError: everything else that it reports.
    """
    import requests
    from docker.errors import APIError, DockerException, ImageNotFound

    try:
        yield
    except ExecError:
        raise
    except ImageNotFound as error:
        raise ImageError(f"there is no such image: {error.explanation}") from error
    except APIError as error:
        status, said = error.status_code, str(error.explanation or error)
        if status == 400 or REFUSAL.search(said):
            raise ConfigError(f"Docker refuses the configuration: {said}") from error
        raise LaunchError(f"Docker answered with {status}: {said}") from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise BackendUnavailable(unavailable(error)) from error


def unavailable(error: BaseException) -> str:
    """Why the daemon cannot be used, and the command that mends it."""
    text = str(error)
    if "Permission denied" in text:
        return "this user may not use the Docker daemon: sudo usermod -aG docker $USER, then log in again"
    if "timed out" in text.lower():
        return f"the Docker daemon does not answer in time: sudo systemctl restart docker ({text})"
    return f"no Docker daemon answers: sudo systemctl start docker, or set base_url or DOCKER_HOST ({text})"


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status of the daemon's answer that led to an error of ours."""
    while error is not None:
        code = getattr(error, "status_code", None)
        if isinstance(code, int):
            return code
        error = error.__cause__
    return None
