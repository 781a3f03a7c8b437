"""The Docker engine behind its SDK: one client, blocking calls in threads, foreign errors mapped where they enter."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from hermes_exec.backends.docker.answer import ANSWER, Answer
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.deadline import ANSWERED_UNTIL, deadline
from hermes_exec.backends.engine_errors import away_for_now
from hermes_exec.backends.threads import in_thread, launch_in_thread
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError

if TYPE_CHECKING:
    from docker import DockerClient

    from hermes_exec.backends.docker.client import HurriedClient

T = TypeVar("T")
MAX_CALLS = 16
"""Calls of one backend that may be under way at once; each occupies a thread and a connection."""
CLOSED_TIMEOUT_S = 5
"""Longest time for one answer after `close`, in seconds: for threads that undo abandoned work."""
REFUSAL = re.compile(r"unable to find (user|group) |network \S+ not found|could not select device driver")
"""What the daemon says, with a status other than 400, of a configuration that can never work."""


class Engine:
    """One Docker engine. The SDK is imported, and the engine contacted, at first use.

    A caller that is cancelled, or whose deadline has passed, does not wait for a silent engine: the thread of the
    request ends after `api_timeout_s` at the latest.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: HurriedClient | None = None
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)
        self._making: set[anyio.CancelScope] = set()
        self._answered = False
        self._closed = False

    def client(self) -> HurriedClient:
        """The client, made at the first call; blocking. Raises BackendUnavailable."""
        with self._lock:
            if self._client is None:
                self._client = self._connected()
            return self._client

    def _connected(self) -> HurriedClient:
        try:
            from hermes_exec.backends.docker.client import connect
        except ImportError as error:
            raise BackendUnavailable("the Docker SDK is not installed: pip install 'hermes-exec[docker]'") from error
        with mapped():
            return connect(self._config, MAX_CALLS + 4)

    async def call(self, work: Callable[[DockerClient], T]) -> T:
        """Do blocking work with the client in a thread. Errors of the engine become ours (see ``mapped``).

        Work that was begun goes on when nobody waits for it any more; no answer is then waited for past the deadline
        of the caller.
        """
        task = partial(self.call_now, work, deadline() - anyio.current_time())
        return await in_thread(task, self._limiter)

    async def follow(self, work: Callable[[DockerClient], T]) -> T:
        """As ``call`` for work that takes long and reads one answer as it comes. When nobody waits for it any more the
        engine is hung up on, and gives it up.
        """
        answer = Answer()

        def followed(client: DockerClient) -> T:
            token = ANSWER.set(answer)
            try:
                return work(client)
            finally:
                ANSWER.reset(token)
                answer.ended()

        try:
            # Not the limiter of the calls, which would wait for it.
            return await anyio.to_thread.run_sync(partial(self.call_now, followed), abandon_on_cancel=True)
        finally:
            answer.hang_up()

    async def make(self, work: Callable[[DockerClient], T], unmake: Callable[[T], None]) -> T:
        """As ``call`` for work that makes something, which is unmade when nobody waits for it any more.

        A caller that is cancelled waits for that, but not after `close`.
        """
        patience = anyio.CancelScope(shield=True)
        self._making.add(patience)
        try:
            return await launch_in_thread(partial(self.call_now, work), unmake, self._limiter, patience)
        finally:
            self._making.discard(patience)

    def call_now(self, work: Callable[[DockerClient], T], within_s: float = math.inf) -> T:
        """As ``call`` in the calling thread; no answer is waited for longer than `within_s` from now.

        Raises:
            ExecError: as ``mapped``; BackendUnavailable is retryable when the daemon has answered before, or did not
                answer in time.
        """
        token = ANSWERED_UNTIL.set(time.monotonic() + within_s)
        try:
            client = self.client()
            with mapped():
                done = work(client)
            self._answered = True
            return done
        except BackendUnavailable as error:
            if self._answered:
                away_for_now(error)
            raise
        finally:
            ANSWERED_UNTIL.reset(token)
            if self._closed:
                self._drop_connections()

    def close(self) -> None:
        """Close the connections and end all waits. Threads finish what they are doing, with a shorter timeout."""
        self._closed = True
        for scope in self._making:
            scope.cancel()
        if self._client is not None:
            self._client.api.timeout = min(self._client.api.timeout, CLOSED_TIMEOUT_S)
        self._drop_connections()

    def _drop_connections(self) -> None:
        if self._client is not None:
            self._client.close()


@contextmanager
def mapped() -> Iterator[None]:
    """Turns errors of the SDK into errors of this library.

    Raises:
        BackendUnavailable: no daemon answers, or it refuses us; with the command that mends it.
        ImageError: an image is not there.
        ConfigError: the daemon says that what was asked for is wrong.
        LaunchError: everything else that it reports.
    """
    import requests
    import urllib3
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
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        away = BackendUnavailable(unavailable(error))
        # Silence says nothing about the configuration.
        raise away_for_now(away) if "timed out" in str(error).lower() else away from error


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
