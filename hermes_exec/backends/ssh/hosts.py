"""Several hosts: which of them gets the next sandbox, and which are left out for a while because they are away."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio

from hermes_exec.backends.engine_errors import away_for_now, unavailable_for_now
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.threads import in_thread
from hermes_exec.errors import BackendUnavailable, ExecError, LaunchError

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""How long a host that failed is left out, and at most after further failures; each pause is twice the one before."""


@dataclass(eq=False, slots=True)
class Known:
    """What is known of a host: since it answered last it failed so often, for that reason. Times are the clock's."""

    host: Host
    sandboxes: set[object] = field(default_factory=set)
    failures: int = 0
    error: ExecError | OSError | None = None
    failed_at: float = -math.inf
    left_out_until: float = -math.inf


class Hosts:
    """The hosts of a backend. Everything happens in its event loop."""

    def __init__(self, hosts: Iterable[Host], clock: Callable[[], float] = time.monotonic) -> None:
        self.known = [Known(host) for host in hosts]
        self._clock = clock

    async def place(self, start: Callable[[Host, Callable[[], None]], Awaitable[T]]) -> T:
        """Start a sandbox on the best host, and where that fails on the next. `start` is given a host, and a function
        to call when the sandbox is gone.

        Raises:
            ExecError: it failed on all hosts; with the reason of each. BackendUnavailable is retryable.
        """
        rest = self._due()
        while rest:
            chosen = max(rest, key=lambda known: known.host.claim(len(known.sandboxes)))
            sandbox, began = object(), self._clock()
            gone = partial(chosen.sandboxes.discard, sandbox)
            chosen.sandboxes.add(sandbox)
            chosen.left_out_until = began + _pause_s(chosen.failures)  # of one that was away: it is tried once
            try:
                made = await start(chosen.host, gone)
            except BaseException as error:
                gone()
                if not isinstance(error, ExecError | OSError):
                    raise
                self._leave_out(chosen, error, began)
            else:
                self._take_back(chosen)
                return made
            rest = [known for known in rest if known is not chosen and known.left_out_until <= self._clock()]
        away = self._away()
        raise away_for_now(away) if isinstance(away, BackendUnavailable) else away

    def _due(self) -> list[Known]:
        """Those that are not left out; when all are, the one that is so for the shortest time."""
        now = self._clock()
        due = [known for known in self.known if known.left_out_until <= now]
        return due or [min(self.known, key=lambda known: known.left_out_until)]

    async def ask(self, question: Callable[[Host], T], patience_s: float) -> dict[Host, T]:
        """Ask all hosts at once, in threads. After the first answer the others have `patience_s` more.

        Raises:
            ExecError: none has answered; with the reason of each.
        """
        began, due = self._clock(), self._due()
        answers: dict[Host, T] = {}
        async with anyio.create_task_group() as tasks:

            async def ask(known: Known) -> None:
                try:
                    answers[known.host] = await in_thread(partial(question, known.host), known.host.limiter)
                except (ExecError, OSError) as error:
                    self._leave_out(known, error, began)
                else:
                    self._take_back(known)
                    scope = tasks.cancel_scope
                    scope.deadline = min(scope.deadline, anyio.current_time() + patience_s)

            for known in due:
                tasks.start_soon(ask, known)
        for known in due:
            if known.host not in answers and known.failed_at < began:
                told = f"ssh {known.host.name}: no answer within {patience_s:g} s after that of another host"
                self._leave_out(known, unavailable_for_now(told), began)
        if not answers:
            raise self._away()
        return answers

    def _leave_out(self, known: Known, error: ExecError | OSError, began: float) -> None:
        """Leave out a host that failed in what was begun at that time. What fails together counts once."""
        if not known.failures:
            logger.warning("%s is left out until it answers again: %s", known.host.name, error)
        known.error = error
        if known.failed_at < began:
            known.failures += 1
            known.failed_at = self._clock()
            known.left_out_until = known.failed_at + _pause_s(known.failures)

    def _take_back(self, known: Known) -> None:
        if known.failures:
            logger.warning("%s is back", known.host.name)
        known.failures, known.left_out_until = 0, -math.inf

    def _away(self) -> ExecError:
        """The error when no host can be used."""
        errors = [known.error for known in self.known if known.error is not None]
        kinds = {type(error) if isinstance(error, ExecError) else LaunchError for error in errors}
        kind = kinds.pop() if len(kinds) == 1 else LaunchError
        away = kind("; ".join(dict.fromkeys(map(str, errors))))
        if isinstance(away, BackendUnavailable) and any(isinstance(e, ExecError) and e.retryable for e in errors):
            away_for_now(away)
        return away


def _pause_s(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1)) if failures else 0.0
