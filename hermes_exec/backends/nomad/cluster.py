"""A Nomad cluster behind its client library: blocking calls in threads, errors translated at this boundary."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from hermes_exec.backends.engine_errors import mark_temporary, translate
from hermes_exec.backends.nomad.client import NOT_INSTALLED, connect, open_session, tls_context
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.nomad.errors import NO_ANSWER, ROWS, is_denied
from hermes_exec.backends.threads import launch_in_thread, run_in_thread
from hermes_exec.errors import BackendUnavailable, ExecError

if TYPE_CHECKING:
    from nomad import Nomad
    from requests import Session

    from hermes_exec.backends.nomad.exec_stream import ExecStream

T = TypeVar("T")
MAX_CALLS = 16
"""Calls that may run at once; each occupies a thread."""
PREFIX = "hermes-exec-"
"""Prefix of the names of this library's jobs."""
TASK = "sandbox"
TASK_DIRECTORY = "hermes-exec"
"""This library's directory in the directory of a task."""
LOG, LOG_BYTES = f"{TASK}/{TASK_DIRECTORY}/log", 8192
OLDEST = (1, 8)
RIGHTS = ["submit-job", "alloc-exec", "alloc-lifecycle"]
"""Rights of a token in its namespace. Programs on the nodes themselves need one more."""
DENIED_PAUSE_S = 1.0
"""Pause after a refusal before Nomad is asked once more."""
MAX_ANSWER_CHARS = 2000
"""Most characters of an answer in an error: a proxy answers with a page."""


class Cluster:
    """One address of a cluster. The client is imported, and the address contacted, at first use."""

    def __init__(self, config: NomadConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: Nomad | None = None
        self._session: Session | None = None
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)
        self._answered = False

    async def call(self, work: Callable[[Nomad], T]) -> T:
        """Run blocking work with the client in a thread. Errors are translated (see `call_now`)."""
        return await self.run(partial(self.call_now, work))

    async def run(self, work: Callable[[], T]) -> T:
        """Run other blocking work in a thread."""
        return await run_in_thread(work, self._limiter)

    async def make(self, work: Callable[[Nomad], T], unmake: Callable[[Nomad], object]) -> T:
        """Run work that makes something, like `call`. If the caller stops waiting, `unmake` undoes it."""

        def undo(_: T) -> None:
            self.call_now(unmake)

        return await launch_in_thread(partial(self.call_now, work), undo, self._limiter)

    def call_now(self, work: Callable[[Nomad], T]) -> T:
        """Run work in the calling thread, like `call`.

        Raises:
            BackendUnavailable: If there is no answer (retryable after an earlier answer), or the token lacks a right.
            ConfigError: If Nomad refuses the request as wrong.
            NotFound, LaunchError: For everything else.
        """
        return self._retry_denied(partial(self.ask_now, work))

    def ask_now(self, work: Callable[[Nomad], T]) -> T:
        """Run work that a token need not allow, like `call_now`."""
        client = self.client()
        with self._translate_errors():
            done = work(client)
        self._answered = True
        return done

    def _retry_denied(self, work: Callable[[], T]) -> T:
        """Run work that Nomad may refuse, and retry it once: a server that has just started refuses everything for a
        moment.
        """
        try:
            return work()
        except BackendUnavailable as error:
            if not self._answered or not is_denied(error):
                raise
        time.sleep(DENIED_PAUSE_S)
        try:
            return work()
        except BackendUnavailable as error:
            if is_denied(error) and self._lets_nobody_in():
                mark_temporary(error)
            raise

    def _lets_nobody_in(self) -> bool:
        try:
            self.ask_now(lambda client: client.jobs.get_jobs(prefix=PREFIX))
        except ExecError:
            return True
        return False

    def client(self, token: str | None = None) -> Nomad:
        """Return the client, which the first call makes. With another token, return a new one."""
        with self._lock:
            if self._session is None:
                self._session = open_session(MAX_CALLS)
            if self._client is None:
                own = self._config.token
                self._client = connect(self._config, self._session, own.get_secret_value() if own else None)
            return self._client if token is None else connect(self._config, self._session, token)

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return str(self.client().address)

    def is_open(self) -> bool:
        """Return whether this cluster accepts any token; blocking.

        Raises:
            BackendUnavailable: If it is unreachable, refuses the token, or is too old.
        """
        self.call_now(lambda client: client.jobs.get_jobs(prefix=PREFIX))
        try:
            agent = self.ask_now(lambda client: client.agent.get_agent())
            build = str(agent["config"]["Version"]["Version"])
        except (BackendUnavailable, LookupError, TypeError):  # reading the version takes a further right
            build = ""
        version = re.match(r"(\d+)\.(\d+)", build)
        if version is not None and (int(version[1]), int(version[2])) < OLDEST:
            raise BackendUnavailable(f"Nomad at {self.address} is of version {build}: sandboxes need 1.8 or newer")
        try:
            stranger = self.client(token=str(uuid.uuid4()))
            with self._translate_errors():
                stranger.jobs.get_jobs(prefix=PREFIX)
        except BackendUnavailable as error:
            if not is_denied(error):  # no answer is no proof of ACLs
                raise
            return False
        return True

    async def log_tail(self, allocation: str) -> str:
        """Return the end of the log of a sandbox's runner, or "" if there is none. Reading it takes a further right."""

        def read(client: Nomad) -> str:
            client.client.stat.stat_file(allocation, LOG)  # reading a file that is not there returns the error as text
            return str(client.client.cat.read_file(allocation, LOG))[-LOG_BYTES:]

        try:
            return await self.run(partial(self.ask_now, read))
        except ExecError:
            return ""

    async def open(self, allocation: str, command: Sequence[str], *, frames: bool = True) -> ExecStream:
        """Start a program in a task and return a stream to it.

        Raises:
            LaunchError, BackendUnavailable: If there is no stream.
        """
        work = partial(self._open, allocation, command, frames)
        return await launch_in_thread(work, lambda stream: stream.close_now(), self._limiter)

    def _open(self, allocation: str, command: Sequence[str], frames: bool) -> ExecStream:
        try:
            from hermes_exec.aio.websocket import WebSocketRefused, open_websocket
            from hermes_exec.backends.nomad.exec_stream import ExecStream
        except ImportError as error:
            raise BackendUnavailable(NOT_INSTALLED) from error
        url, client = urllib.parse.urlsplit(self.address), self.client()
        query = {"task": TASK, "tty": "false", "command": json.dumps(list(command))}
        if client.region:
            query["region"] = client.region
        target = f"{url.path}/v1/client/allocation/{allocation}/exec?{urllib.parse.urlencode(query)}"
        tls = tls_context(self._config, client) if url.scheme == "https" else None
        where = (url.hostname or "127.0.0.1", url.port or (443 if tls else 80))
        headers = {"X-Nomad-Token": client.token} if client.token else {}

        def connect() -> ExecStream:
            try:
                fd, websocket = open_websocket(where, target, headers, tls, self._config.api_timeout_s)
            except WebSocketRefused as error:
                raise self.explain(str(error), error.status) from error
            except OSError as error:
                raise self.explain(str(error), failure=error) from error
            return ExecStream(fd, websocket, frames=frames)

        return self._retry_denied(connect)

    def close(self) -> None:
        """Close the connections. Repeated calls do nothing."""
        if self._session is not None:
            self._session.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from nomad.api.exceptions import BaseNomadException
        from requests import RequestException, Response
        from requests.exceptions import InvalidJSONError

        try:
            yield
        except BaseNomadException as error:
            response = error.nomad_resp
            if isinstance(response, Response):
                raise self.explain(response.text.strip(), response.status_code) from error
            raise self.explain(str(response or error), failure=error) from error
        except InvalidJSONError as error:
            problem = f"the server at {self.address} is not Nomad: set address or NOMAD_ADDR"
            raise BackendUnavailable(f"{problem} ({error})") from error
        except (RequestException, OSError) as error:
            raise self.explain(str(error), failure=error) from error

    def explain(self, reason: str, status: int | None = None, *, failure: Exception | None = None) -> ExecError:
        """Return the error for an unsuccessful answer of Nomad, or for a failure without one."""
        names = {"address": self.address, "policy": self._policy()}
        error = translate(ROWS, reason[:MAX_ANSWER_CHARS], failure=failure, status=status, **names)
        if isinstance(error, BackendUnavailable) and NO_ANSWER in str(error):
            return mark_temporary(error) if self._answered or "timed out" in str(error) else error
        return error

    def _policy(self) -> str:
        """Return the policy that a token needs."""
        namespace = str(self.client().get_namespace() or "default")
        rights = [*RIGHTS, "alloc-node-exec"] if self._config.driver == "singularity" else RIGHTS
        return f'namespace "{namespace}" {{ policy = "read" capabilities = {json.dumps(rights)} }}'
