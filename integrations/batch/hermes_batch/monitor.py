"""Follows one invocation of a run: what its workers do, how fast it is, and its files of state."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hermes_agent import OpenAIModel, ReplicatedModel, Rollout
from hermes_batch.result import BatchResult
from hermes_batch.status import WRITE_INTERVAL_S, EndpointFacts, RunStatus, count_hosts, write_status
from hermes_exec.errors import ExecError

if TYPE_CHECKING:
    from hermes_agent import Model, SessionModel
    from hermes_agent.rollout_result import Stage
    from hermes_exec import SandboxPool

OnStatus = Callable[[RunStatus], None]
_INTERVAL_S = 1.0
_RECENT_RECORDS = 200
logger = logging.getLogger(__name__)


class RunMonitor:
    """Knows the progress of a run.

    Args:
        out: The directory of the run.
        result: The state of the run. The monitor keeps its `seconds` up to date.
        pool: The pool.
        model: The model.
        on_status: Called each second with the progress.
    """

    def __init__(
        self,
        out: Path,
        result: BatchResult,
        pool: SandboxPool,
        model: Model | SessionModel,
        on_status: OnStatus | None,
    ) -> None:
        self._out, self._result, self._pool, self._model, self._on_status = out, result, pool, model, on_status
        self._began = time.monotonic()
        self._seconds_before = result.seconds
        self._stages: dict[str, Stage] = {}
        self._recent: deque[float] = deque([self._began], maxlen=_RECENT_RECORDS)
        """When the run began, or the last records were added."""

    @contextmanager
    def watch(self, key: str, rollout: Rollout) -> Iterator[Rollout]:
        """Yield a rollout that notes its stages as the work of a worker, until the block ends."""
        on_stage = rollout.on_stage

        def note(stage: Stage) -> None:
            self._stages[key] = stage
            if on_stage is not None:
                on_stage(stage)

        try:
            yield replace(rollout, on_stage=note)
        finally:
            self._stages.pop(key, None)

    def note_record(self) -> None:
        """Note that a record was added."""
        self._recent.append(time.monotonic())

    def make_status(self, *, ended: bool = False) -> RunStatus:
        """Return the progress of the run, and update the seconds of its result."""
        now, result = time.monotonic(), self._result
        result.seconds = self._seconds_before + now - self._began
        rate = (len(self._recent) - 1) / (now - self._recent[0]) if len(self._recent) > 1 else None
        pool = self._pool.stats()
        return _make_status(
            result,
            rate=rate,
            left_s=(result.total - result.records) / rate if rate and not ended else None,
            workers=dict(Counter(self._stages.values())),
            sandboxes={phase: count for phase, count in pool.sandboxes.items() if count},
            hosts=count_hosts(pool.runners),
            endpoint=self._describe_endpoint(),
            ended=ended,
        )

    def _describe_endpoint(self) -> EndpointFacts | None:
        if not isinstance(self._model, OpenAIModel | ReplicatedModel):
            return None
        status = self._model.status
        parts = {url: EndpointFacts(**{**part._asdict(), "parts": {}}) for url, part in status.parts}
        return EndpointFacts(**{**status._asdict(), "parts": parts})

    async def report(self, write_state: Callable[[BatchResult], None]) -> None:
        """Report the progress each second, and write it: `status.json` every 10 s, and the number of records in
        `run.json` when it has changed. A file that cannot be written is logged: it must not end the run.
        """
        next_write, records = 0.0, -1
        while True:
            status = self.make_status()
            if self._on_status is not None:
                self._on_status(status)
            if (now := time.monotonic()) >= next_write:
                next_write = now + WRITE_INTERVAL_S
                await self._write(partial(write_status, self._out, status))
            if status.records != records:
                records = status.records
                await self._write(partial(write_state, self._result))
            await anyio.sleep(_INTERVAL_S)

    def finish(self) -> None:
        """Report and write the progress at the end of the run."""
        status = self.make_status(ended=True)
        if self._on_status is not None:
            self._on_status(status)
        write_status(self._out, status)

    async def _write(self, write: Callable[[], None]) -> None:
        try:
            await anyio.to_thread.run_sync(write)
        except (OSError, ExecError) as error:
            logger.warning("the progress of the run cannot be written: %s", error)


def write_final_status(result: BatchResult) -> None:
    """Write the status of a run with nothing left to do.

    Raises:
        OSError: If it cannot be written.
    """
    write_status(result.out, _make_status(result, ended=True))


def _make_status(result: BatchResult, **more: Any) -> RunStatus:
    tally = result.tally
    return RunStatus(
        total=result.total,
        records=result.records,
        outcomes=tally.outcomes,
        tool_calls=tally.tool_calls,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        cost=tally.cost,
        seconds=round(result.seconds, 3),
        stopped=result.stopped,
        **more,
    )
