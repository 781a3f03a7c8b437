"""The Docker engine behind its SDK: one client, blocking calls in threads, errors translated at this boundary."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.deadline import RESPONSE_DEADLINE, deadline
from hermes_exec.backends.docker.streaming_response import CURRENT_RESPONSE, StreamingResponse
from hermes_exec.backends.engine_errors import mark_temporary
from hermes_exec.backends.threads import launch_in_thread, run_in_thread
from hermes_exec.errors import BackendUnavailable

if TYPE_CHECKING:
    from docker import DockerClient

    from hermes_exec.backends.docker.client import DeadlineClient

T = TypeVar("T")
MAX_CALLS = 16
"""Calls of one backend that may run at once; each occupies a thread and a connection."""
CLOSED_TIMEOUT_S = 5
"""Longest time for one answer after `close`, in seconds: for threads that undo abandoned work."""


class DockerEngine:
    """One Docker engine. The SDK is imported, and the engine contacted, at first use.

    A caller that is cancelled, or whose deadline has passed, does not wait for a silent engine. The request's thread
    ends after `api_timeout_s` at the latest.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: DeadlineClient | None = None
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)
        self._making: set[anyio.CancelScope] = set()
        self._answered = False
        self._closed = False

    def client(self) -> DeadlineClient:
        """Return the client, which the first call makes; blocking.

        Raises:
            BackendUnavailable: If it cannot be made.
        """
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> DeadlineClient:
        try:
            from hermes_exec.backends.docker.client import connect
            from hermes_exec.backends.docker.errors import translate_errors
        except ImportError as error:
            raise BackendUnavailable("the Docker SDK is not installed: pip install 'hermes-exec[docker]'") from error
        with translate_errors():
            return connect(self._config, MAX_CALLS + 4)

    async def call(self, work: Callable[[DockerClient], T]) -> T:
        """Run blocking work with the client in a thread. Errors of the engine are translated (see `translate_errors`).

        Work that has started goes on if the caller stops waiting, but waits for no answer past the caller's deadline.
        """
        task = partial(self.call_now, work, deadline() - anyio.current_time())
        return await run_in_thread(task, self._limiter)

    async def follow(self, work: Callable[[DockerClient], T]) -> T:
        """Run long work that reads one streaming response, like `call`. If the caller stops waiting, the engine is hung
        up on and abandons it.
        """
        response = StreamingResponse()

        def work_attached(client: DockerClient) -> T:
            token = CURRENT_RESPONSE.set(response)
            try:
                return work(client)
            finally:
                CURRENT_RESPONSE.reset(token)
                response.detach()

        try:
            # Without the limiter, because other calls would wait for this one.
            return await anyio.to_thread.run_sync(partial(self.call_now, work_attached), abandon_on_cancel=True)
        finally:
            response.hang_up()

    async def make(self, work: Callable[[DockerClient], T], unmake: Callable[[T], None]) -> T:
        """Run work that makes something, like `call`. If the caller stops waiting, `unmake` undoes it.

        A cancelled caller waits for that, but not after `close`.
        """
        patience = anyio.CancelScope(shield=True)
        self._making.add(patience)
        try:
            return await launch_in_thread(partial(self.call_now, work), unmake, self._limiter, patience)
        finally:
            self._making.discard(patience)

    def call_now(self, work: Callable[[DockerClient], T], within_s: float = math.inf) -> T:
        """Run work in the calling thread, like `call`. No answer may take longer than `within_s` from now.

        Raises:
            ExecError: Like `translate_errors`. BackendUnavailable is retryable if the daemon has answered before, or
                did not answer in time.
        """
        token = RESPONSE_DEADLINE.set(time.monotonic() + within_s)
        try:
            client = self.client()
            from hermes_exec.backends.docker.errors import translate_errors

            with translate_errors():
                result = work(client)
            self._answered = True
            return result
        except BackendUnavailable as error:
            if self._answered:
                mark_temporary(error)
            raise
        finally:
            RESPONSE_DEADLINE.reset(token)
            if self._closed:
                self._drop_connections()

    def close(self) -> None:
        """Close the connections and end all waits. Threads finish their work with a shorter timeout."""
        self._closed = True
        for scope in self._making:
            scope.cancel()
        if self._client is not None:
            self._client.api.timeout = min(self._client.api.timeout, CLOSED_TIMEOUT_S)
        self._drop_connections()

    def _drop_connections(self) -> None:
        if self._client is not None:
            self._client.close()


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of the daemon's answer that caused an error."""
    while error is not None:
        code = getattr(error, "status_code", None)
        if isinstance(code, int):
            return code
        error = error.__cause__
    return None
