"""One prompt: a slot, the task's files, the episode, the check, the record."""

from __future__ import annotations

import logging
import shlex
import time
from typing import TYPE_CHECKING

from hermes_agent.episode import Episode
from hermes_agent.loop import AgentLoop
from hermes_agent.messages import Message
from hermes_agent.models.base import Model
from hermes_batch.config import BatchConfig
from hermes_batch.dataset import Task
from hermes_batch.record import NO_CHECK, CheckResult, Failure, Place, Record, make_record
from hermes_exec.errors import ErrorCause, ExecError
from hermes_exec.tools import Toolbox

if TYPE_CHECKING:
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.slot.slot import Slot

_LOG = logging.getLogger(__name__)
_CHECK_OUTPUT = 2000


class Rollout:
    """One prompt on its way to a record. What went wrong is in the record; only cancellation leaves `run` as an
    exception.
    """

    def __init__(self, task: Task, config: BatchConfig, model: Model) -> None:
        self._task, self._config, self._model = task, config, model
        self._episode: Episode | None = None
        self._check: CheckResult = NO_CHECK
        self._solved: bool | None = None
        self._failure: Failure | None = None
        self._cause: ErrorCause | None = None
        self._place: Place = {
            "backend": str(getattr(config.backend, "name", config.backend)),
            "image": task.container_image or config.image or "",
            "isolation": "",
            "sandbox": "",
        }

    async def run(self, pool: SandboxPool) -> Record:
        """Work on the prompt in a slot of the pool."""
        started = time.monotonic()
        try:
            async with pool.slot(image=self._task.container_image) as slot:
                self._place = {**self._place, "isolation": str(slot.isolation.level), "sandbox": str(slot.sandbox)}
                await self._in_slot(slot)
        except ExecError as error:
            self._failed(error, error.cause)
        except OSError as error:
            self._failed(error, ErrorCause.TASK)
        except Exception as error:  # noqa: BLE001 - a bug spoils its own prompt only
            _LOG.error("prompt %d", self._task.index, exc_info=error)
            self._failed(error, ErrorCause.INFRA)
        return make_record(
            self._task,
            self._episode,
            model=self._config.model_name,
            toolsets=list(self._config.toolsets),
            place=self._place,
            seconds=time.monotonic() - started,
            check=self._check,
            solved=self._solved,
            failure=self._failure,
            cause=None if self._cause is None else self._cause.value,
        )

    async def _in_slot(self, slot: Slot) -> None:
        task, config = self._task, self._config
        if task.tree is not None:
            await slot.files.upload(task.tree, ".")
        for path, text in task.files.items():
            await slot.files.write_text(path, text)
        toolbox = Toolbox(slot, list(config.toolsets))
        if task.cwd is not None:
            moved = await toolbox.call("terminal", {"command": f"cd -- {shlex.quote(task.cwd)}"})
            if not moved.ok:
                raise NotADirectoryError(f"the task's cwd {task.cwd!r}: {moved.data.get('error') or 'is no directory'}")
        loop = AgentLoop(
            self._model,
            toolbox,
            max_turns=config.max_turns,
            max_tool_calls=config.max_tool_calls,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            sampling=self._sampling(),
        )
        self._episode = await loop.run(self._messages())
        if task.check is not None and self._episode.trainable:
            await self._score(slot, task.check)

    async def _score(self, slot: Slot, check: str) -> None:
        """Run the check when nothing of the agent runs any more. A box that its own tenant ended did not solve its
        task.
        """
        try:
            await slot.kill_all()
            result = await slot.run(check, timeout_s=self._config.check_timeout_s, merge_stderr=True)
        except ExecError as error:
            if error.cause is not ErrorCause.POLICY:
                raise
            self._solved = False
            self._check = {"exit_code": None, "timed_out": False, "output": str(error)}
            return
        self._solved = result.ok
        self._check = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "output": result.output[:_CHECK_OUTPUT],
        }

    def _failed(self, error: Exception, cause: ErrorCause) -> None:
        if self._solved is not None or (self._episode is not None and not self._episode.trainable):
            # The score is decided: what fails now is the return of the slot.
            _LOG.warning("prompt %d: %s: %s", self._task.index, type(error).__name__, error)
            return
        self._cause = cause
        turn = 0 if self._episode is None else self._episode.turns
        self._failure = {"turn": turn, "where": "infra", "kind": type(error).__name__, "message": str(error)}

    def _messages(self) -> list[Message]:
        system = self._config.system_prompt
        told: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        return [*told, {"role": "user", "content": self._task.prompt}]

    def _sampling(self) -> dict[str, object]:
        seed = self._config.seed
        return {**({} if seed is None else {"seed": seed + self._task.index}), **self._config.sampling}
