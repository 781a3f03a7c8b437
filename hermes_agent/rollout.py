"""One rollout: a slot, the task's files, an episode, its score, and the cause of the end."""

from __future__ import annotations

import inspect
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, overload

from hermes_agent.artifacts import Artifacts, CollectedFiles, collect_artifacts
from hermes_agent.episode import Episode, EpisodeError, Finish
from hermes_agent.gateway.harnesses import Harness
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.program import DEADLINE_S, HarnessProgram, task_text
from hermes_agent.hooks import Hooks, Turn
from hermes_agent.loop import AgentLoop
from hermes_agent.messages import Message, ToolCall
from hermes_agent.models.base import Model, SessionModel
from hermes_agent.rollout_result import OnStage, RolloutResult, Stage, Timings
from hermes_agent.scoring import CheckFailed, Files, Scorer, Scoring, Verdict, is_work_error, put_files, score
from hermes_agent.shared_set_up import SharedSetUp, SlotChoice
from hermes_exec import ProfileConfig, SandboxPool, Slot, blocking
from hermes_exec.aio.loop import raise_stray_cancellation
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError, ErrorCause, ExecError
from hermes_exec.tools import HostTool, Toolbox, ToolOptions

logger = logging.getLogger(__name__)

Prepare = Callable[[Slot], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The description of a rollout, shared by batch runs, the command line and RL.

    Args:
        messages: The messages that begin the episode (a text: one user message).
        files: Files that are put into the slot: a path below `slot.workdir` to a text, bytes, or the `pathlib.Path` of
            a file or directory on this host.
        prepare: An async function of the slot that is awaited after the files are there.
        cwd: The directory to which the terminal moves before the episode, or in which `program` starts.
        toolsets: Toolsets of the `Toolbox`.
        tools: Tools of the `Toolbox`.
        tool_options: Options of the `Toolbox`.
        scoring: The way to score the episode. None: no score.
        collect: The files to copy out of the slot when the episode has ended, before it is scored. None: no file.
        image: Image of the slot, as in `SandboxPool.slot`.
        profile: Profile of the slot, as in `SandboxPool.slot`.
        workdir: Working directory of the slot, as in `SandboxPool.slot`.
        shared: The set-up (`files` and `prepare`) that this rollout shares with others that run in a pool, each of them
            in a fork of one slot. None: the rollout sets up its slot itself, as `run_in` always does.
        loop: Arguments of `AgentLoop` (`max_turns`, `hooks`, …).
        program: A harness that runs in the slot in place of the `AgentLoop`: a recipe (`harness`), a program and its
            arguments, with the task in place of `{task}`, or a text for the slot's shell. `messages` is then a text or
            one user message. All forms have it in the variable `HERMES_TASK`, and reach the model by a `ModelGateway`.
        gateway: Options and budgets of the gateway. None: the defaults of `Gateway`.
        env: Variables of `program`, which win over `ModelGateway.env`.
        deadline_s: The most seconds that `program` runs, with outages of the model's endpoint. None: one hour.
            `math.inf`: no bound.
        on_stage: Called at the beginning of each stage of the rollout. While a program runs, the stage is `model` as
            long as a request is under way, else `tools`.

    Raises:
        ConfigError: If `loop` has a name that AgentLoop does not accept, or options exclude each other: `program` and
            any of `toolsets`, `tools`, `tool_options` and `loop`; `gateway`, `env` or `deadline_s` without `program`.
    """

    messages: Sequence[Message] | str
    files: Files = field(default_factory=dict)
    prepare: Prepare | None = None
    cwd: str | None = None
    toolsets: Iterable[str] | None = None
    tools: Iterable[str | HostTool] | None = None
    tool_options: ToolOptions | None = None
    scoring: Scoring | None = None
    collect: Artifacts | None = None
    image: str | None = None
    profile: str | ProfileConfig | None = None
    workdir: str | None = None
    shared: SharedSetUp | None = None
    loop: Mapping[str, Any] = field(default_factory=dict)
    program: str | Sequence[str] | Harness | None = None
    gateway: Gateway | None = None
    env: Mapping[str, str] | None = None
    deadline_s: float | None = None
    on_stage: OnStage | None = None

    def __post_init__(self) -> None:
        apart: tuple[str, ...] = ("gateway", "env", "deadline_s")
        if self.program is not None:
            apart = ("toolsets", "tools", "tool_options", "loop")
            _ = self._harness_program
        if given := [name for name in apart if getattr(self, name) not in (None, {})]:
            why = "need program" if self.program is None else "are options of the AgentLoop, which program replaces"
            raise ConfigError(f"{', '.join(given)} {why}")
        known = inspect.signature(AgentLoop).parameters
        for name in self.loop:
            if name not in known:
                raise ConfigError(f"AgentLoop has no {name!r}; {nearest(name, known)}")

    @property
    def _harness_program(self) -> HarnessProgram:
        assert self.program is not None
        program = self.program
        command, env = (program.argv, program.env) if isinstance(program, Harness) else (program, {})
        return HarnessProgram(
            command=command,
            task=task_text(self.messages),
            env={**env, **(self.env or {})},
            cwd=self.cwd,
            deadline_s=DEADLINE_S if self.deadline_s is None else self.deadline_s,
        )

    @overload
    def run(self, pool: blocking.SandboxPool, model: Model | SessionModel) -> RolloutResult: ...
    @overload
    def run(self, pool: SandboxPool, model: Model | SessionModel) -> Awaitable[RolloutResult]: ...
    def run(
        self, pool: SandboxPool | blocking.SandboxPool, model: Model | SessionModel
    ) -> RolloutResult | Awaitable[RolloutResult]:
        """Run the rollout in a slot of the pool. With a blocking pool this call blocks.

        Failures are recorded in the result; only cancellation propagates.
        """
        if isinstance(pool, blocking.SandboxPool):
            return pool.run_async(partial(self._in_pool, pool.wrapped, model))
        return self._in_pool(pool, model)

    @overload
    def run_in(self, slot: blocking.Slot, model: Model | SessionModel) -> RolloutResult: ...
    @overload
    def run_in(self, slot: Slot, model: Model | SessionModel) -> Awaitable[RolloutResult]: ...
    def run_in(
        self, slot: Slot | blocking.Slot, model: Model | SessionModel
    ) -> RolloutResult | Awaitable[RolloutResult]:
        """Run the rollout in a slot that the caller holds. The slot is not reset afterwards."""
        if isinstance(slot, blocking.Slot):
            return slot.run_async(partial(self._in_slot, slot.wrapped, model))
        return self._in_slot(slot, model)

    async def _in_pool(self, pool: SandboxPool, model: Model | SessionModel) -> RolloutResult:
        run = _RolloutRun(self, model)

        async def acquire_and_run() -> None:
            if self._scores_in_fork:
                pool.check_checkpoints(self.profile, self.image)
            choice = SlotChoice(self.profile, self.image, self.workdir)
            if self.shared is not None:
                async with self.shared.slot(pool, choice, run.set_up_shared) as (slot, is_fork):
                    await run.work_in(slot, is_fork=is_fork)
                return
            async with pool.slot(*choice) as slot:
                await run.run_in(slot)

        return await run.collect(acquire_and_run)

    @property
    def _scores_in_fork(self) -> bool:
        return self.scoring is not None and self.scoring.score_in == "fork"

    async def _in_slot(self, slot: Slot, model: Model | SessionModel) -> RolloutResult:
        run = _RolloutRun(self, model)
        return await run.collect(partial(run.run_in, slot))


_UNFINISHED: frozenset[Finish] = frozenset({"infra", "model_error", "cancelled"})
"""The ends after which nothing is collected: the episode could have gone on."""
_Stage = Literal["slot", "task", "episode", "scoring", "check", "done"]


class _RolloutRun:
    """A rollout in progress."""

    def __init__(self, rollout: Rollout, model: Model | SessionModel) -> None:
        self._rollout, self._model = rollout, model
        self._stage: _Stage = "slot"
        self._since = 0.0
        self._seconds: dict[_Stage, float] = {}
        self._result = RolloutResult(None)

    async def collect(self, work: Callable[[], Awaitable[None]]) -> RolloutResult:
        """Return the result after the work has ended, however it ends."""
        self._since = started = time.monotonic()
        started_at = datetime.now(UTC)
        self._notify_stage("queue")
        try:
            with raise_stray_cancellation("code of the rollout"):
                await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it spoils its own rollout only
            self._record_failure(error)
        timings, seconds = self._timings(), time.monotonic() - started
        return replace(self._result, seconds=seconds, timings=timings, started=started_at, ended=datetime.now(UTC))

    def _begin(self, stage: _Stage) -> None:
        """Begin a stage, and count the seconds of the stage before."""
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def _notify_stage(self, stage: Stage) -> None:
        if self._rollout.on_stage is not None:
            self._rollout.on_stage(stage)

    def _loop_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the loop, with hooks that notify the caller of the stages of each turn."""
        loop = self._rollout.loop
        if self._rollout.on_stage is None:
            return loop
        hooks: Hooks = loop.get("hooks") or Hooks()

        def before_call(call: ToolCall) -> Awaitable[str | None] | str | None:
            self._notify_stage("tools")
            return None if hooks.before_call is None else hooks.before_call(call)

        def on_turn(turn: Turn) -> Awaitable[None] | None:
            self._notify_stage("model")
            return None if hooks.on_turn is None else hooks.on_turn(turn)

        return {**loop, "hooks": replace(hooks, before_call=before_call, on_turn=on_turn)}

    def _timings(self) -> Timings:
        self._begin(self._stage)
        seconds, episode = self._seconds, self._result.episode
        return Timings(
            queue_s=seconds.get("slot", 0.0),
            setup_s=seconds.get("task", 0.0),
            model_s=0.0 if episode is None else episode.model_seconds,
            tools_s=0.0 if episode is None else episode.tool_seconds,
            check_s=seconds.get("scoring", 0.0) + seconds.get("check", 0.0),
        )

    async def run_in(self, slot: Slot) -> None:
        """Set up the slot, let the model work, and score."""
        await self._set_up_checked(slot)
        await self.work_in(slot)

    async def set_up_shared(self, slot: Slot) -> None:
        """Set up the slot of a `SharedSetUp`, for which other rollouts may wait."""
        await self._set_up_checked(slot)
        self._begin("slot")
        self._notify_stage("queue")

    async def _set_up_checked(self, slot: Slot) -> None:
        self._note_slot(slot)
        self._begin("task")
        self._notify_stage("setup")
        try:
            if self._rollout._scores_in_fork:  # before the model works in vain
                await (await slot.checkpoint()).drop()
            await self._set_up(slot)
        except Exception:
            if slot.disk_full:
                await slot.check_disk()
            raise

    def _note_slot(self, slot: Slot) -> None:
        self._result = replace(self._result, isolation=str(slot.isolation.level), sandbox=str(slot.sandbox))

    async def work_in(self, slot: Slot, *, is_fork: bool = False) -> None:
        """Let the model work in a slot that is set up, and score. `is_fork`: a reset of the slot sets it up again."""
        self._note_slot(slot)
        self._begin("task")
        if is_fork:
            await slot.note_prepared()
        episode = await (self._run_loop(slot) if self._rollout.program is None else self._run_program(slot))
        self._result = replace(self._result, episode=episode, cause=episode.cause)
        self._begin("scoring")
        self._notify_stage("check")
        if episode.trainable:
            await slot.check_disk()
        await self._collect_artifacts(slot, episode)
        if self._rollout.scoring is not None and episode.trainable:
            scoring = replace(self._rollout.scoring, check=partial(self._check, self._rollout.scoring.check))
            verdict, killed = await score(slot, episode, scoring, None if is_fork else self._set_up)
            self._result = replace(self._result, verdict=verdict, killed=killed)
        self._begin("done")

    async def _run_loop(self, slot: Slot) -> Episode:
        rollout = self._rollout
        toolbox = Toolbox(slot, rollout.toolsets, tools=rollout.tools, options=rollout.tool_options)
        self._result = replace(self._result, unavailable=toolbox.unavailable)
        await self._enter(toolbox)
        self._begin("episode")
        self._notify_stage("model")
        return await AgentLoop(self._model, toolbox, **self._loop_arguments()).run(rollout.messages)

    async def _run_program(self, slot: Slot) -> Episode:
        from hermes_agent.gateway.episode import run_program_episode

        self._begin("episode")
        self._notify_stage("tools")
        options = self._rollout.gateway or Gateway()
        return await run_program_episode(slot, self._model, self._rollout._harness_program, options, self._notify_busy)

    def _notify_busy(self, busy: bool) -> None:
        self._notify_stage("model" if busy else "tools")

    async def _collect_artifacts(self, slot: Slot, episode: Episode) -> None:
        if self._rollout.collect is None or episode.finish in _UNFINISHED:
            return
        try:
            collected = await collect_artifacts(slot, self._rollout.collect)
        except ExecError as error:
            if error.cause is not ErrorCause.POLICY:
                raise
            # The tenant ended its own sandbox, which the score takes into account.
            collected = CollectedFiles(problems=(f"{type(error).__name__}: {error}",))
        self._result = replace(self._result, collected=collected)

    async def _check(self, check: Scorer, slot: Slot, episode: Episode) -> Verdict:
        self._begin("check")
        return await check(slot, episode)

    async def _set_up(self, slot: Slot) -> None:
        await put_files(slot, self._rollout.files)
        if self._rollout.prepare is not None:
            await self._rollout.prepare(slot)
        if self._rollout.files or self._rollout.prepare is not None:
            await slot.note_prepared()

    async def _enter(self, toolbox: Toolbox) -> None:
        cwd = self._rollout.cwd
        if cwd is not None:
            result = await toolbox.call("terminal", {"command": f"cd -- {shlex.quote(cwd)}"})
            if not result.ok:
                raise NotADirectoryError(f"the task's cwd {cwd!r}: {result.data.get('error') or 'is not a directory'}")

    def _record_failure(self, error: Exception) -> None:
        """Record the failure that prevented the episode or its score."""
        episode = self._result.episode
        if self._stage == "done" or (episode is not None and not episode.trainable):
            # The score is final: only the release of the slot failed.
            logger.warning("after a rollout: %s: %s", type(error).__name__, error)
            return
        message = str(error)
        if isinstance(error, ExecError):
            cause = error.cause
        elif self._stage == "check" and is_work_error(error):
            _log_unexpected(error)
            cause = ErrorCause.CONFIG
            message += "; a check that cannot read the model's files must return a Verdict, not raise"
        elif isinstance(error, OSError):
            cause = ErrorCause.TASK if self._stage == "task" else ErrorCause.INFRA
        else:
            if not isinstance(error, CheckFailed):
                _log_unexpected(error)
            cause = ErrorCause.INFRA
        episode_error = EpisodeError(0 if episode is None else episode.turns, "infra", type(error).__name__, message)
        self._result = replace(self._result, error=episode_error, exception=error, cause=cause)


_LOGGED: set[tuple[str, str]] = set()
_MAX_LOGGED = 1000


def _log_unexpected(error: Exception) -> None:
    """Log an unexpected error, with its traceback the first time."""
    key = (type(error).__name__, str(error))
    first = key not in _LOGGED
    if len(_LOGGED) >= _MAX_LOGGED:
        _LOGGED.clear()
    _LOGGED.add(key)
    logger.error("a rollout ended by %s: %s", *key, exc_info=error if first else None)
