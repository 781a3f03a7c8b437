"""The choice among several hosts: which one gets the next sandbox, and which ones are skipped because they are away."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio

from hermes_exec.backends.engine_errors import mark_temporary, temporarily_unavailable
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.threads import run_in_thread
from hermes_exec.errors import BackendUnavailable, ExecError, LaunchError

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""How long a failed host is skipped after its first failure, and at most. Each further failure doubles the pause."""


@dataclass(eq=False, slots=True)
class HostState:
    """A host with its sandboxes, and its failures since its last answer. Times are the clock's."""

    host: Host
    sandboxes: set[object] = field(default_factory=set)
    failures: int = 0
    error: ExecError | OSError | None = None
    failed_at: float = -math.inf
    left_out_until: float = -math.inf


class Hosts:
    """The hosts of a backend. All methods run in its event loop."""

    def __init__(self, hosts: Iterable[Host], clock: Callable[[], float] = time.monotonic) -> None:
        self.states = [HostState(host) for host in hosts]
        self._clock = clock

    async def place(self, start: Callable[[Host, Callable[[], None]], Awaitable[T]]) -> T:
        """Start a sandbox on the best host, and after a failure on the next best.

        `start` receives a host, and a function to call when the sandbox is gone.

        Raises:
            ExecError: If it failed on all hosts, with the reason of each. BackendUnavailable is retryable.
        """
        rest = self._due()
        while rest:
            chosen = max(rest, key=lambda state: state.host.claim(len(state.sandboxes)))
            sandbox, began = object(), self._clock()
            gone = partial(chosen.sandboxes.discard, sandbox)
            chosen.sandboxes.add(sandbox)
            chosen.left_out_until = began + _pause_s(chosen.failures)  # a host that was away gets one try
            try:
                launched = await start(chosen.host, gone)
            except BaseException as error:
                gone()
                if not isinstance(error, ExecError | OSError):
                    raise
                self._leave_out(chosen, error, began)
            else:
                self._readmit(chosen)
                return launched
            rest = [state for state in rest if state is not chosen and state.left_out_until <= self._clock()]
        away = self._away_error()
        raise mark_temporary(away) if isinstance(away, BackendUnavailable) else away

    def _due(self) -> list[HostState]:
        """Return the hosts that are not skipped, or else the host whose pause ends first."""
        now = self._clock()
        due = [state for state in self.states if state.left_out_until <= now]
        return due or [min(self.states, key=lambda state: state.left_out_until)]

    async def ask(self, question: Callable[[Host], T], patience_s: float) -> dict[Host, T]:
        """Ask all hosts at once, in threads. After the first answer the others have `patience_s` more.

        Raises:
            ExecError: If no host has answered, with the reason of each.
        """
        began, due = self._clock(), self._due()
        answers: dict[Host, T] = {}
        async with anyio.create_task_group() as tasks:

            async def ask(state: HostState) -> None:
                try:
                    answers[state.host] = await run_in_thread(partial(question, state.host), state.host.limiter)
                except (ExecError, OSError) as error:
                    self._leave_out(state, error, began)
                else:
                    self._readmit(state)
                    scope = tasks.cancel_scope
                    scope.deadline = min(scope.deadline, anyio.current_time() + patience_s)

            for state in due:
                tasks.start_soon(ask, state)
        for state in due:
            if state.host not in answers and state.failed_at < began:
                problem = f"ssh {state.host.name}: no answer within {patience_s:g} s after another host's"
                self._leave_out(state, temporarily_unavailable(problem), began)
        if not answers:
            raise self._away_error()
        return answers

    def _leave_out(self, state: HostState, error: ExecError | OSError, began: float) -> None:
        """Skip a host after a failure of work that began at `began`. Failures of concurrent work count once."""
        if not state.failures:
            logger.warning("%s is left out until it answers again: %s", state.host.name, error)
        state.error = error
        if state.failed_at < began:
            state.failures += 1
            state.failed_at = self._clock()
            state.left_out_until = state.failed_at + _pause_s(state.failures)

    def _readmit(self, state: HostState) -> None:
        if state.failures:
            logger.warning("%s is back", state.host.name)
        state.failures, state.left_out_until = 0, -math.inf

    def _away_error(self) -> ExecError:
        """Return the error if no host is usable."""
        errors = [state.error for state in self.states if state.error is not None]
        kinds = {type(error) if isinstance(error, ExecError) else LaunchError for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else LaunchError
        away = kind("; ".join(dict.fromkeys(map(str, errors))))
        if isinstance(away, BackendUnavailable) and any(isinstance(e, ExecError) and e.retryable for e in errors):
            mark_temporary(away)
        return away


def _pause_s(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1)) if failures else 0.0
