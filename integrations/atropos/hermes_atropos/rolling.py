"""Fills groups with rollouts: those that infrastructure spoilt are rolled again, and what cannot be filled is left."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import anyio
from atroposlib.envs.base import ScoredDataGroup

from hermes_agent import (
    AccessRefused,
    CheckFailed,
    Episode,
    EpisodeError,
    Message,
    Rollout,
    RolloutResult,
    Scoring,
    Verdict,
)
from hermes_agent.models.base import SessionModel
from hermes_agent.rewards import show_value, to_float
from hermes_agent.scoring import check_verdict
from hermes_agent.tokens import ChatTemplate
from hermes_atropos.context import ToolContext
from hermes_atropos.environment import Environment
from hermes_atropos.errors import EnvironmentMistake, EnvironmentStopped, ServerReachable
from hermes_atropos.evaluation import Evaluated
from hermes_atropos.groups import Finished, Group, KeptGroups, find_odd_value, finished, problem, scored, to_json
from hermes_atropos.hooks import code_of
from hermes_atropos.loop_watch import LoopWatch
from hermes_atropos.metrics import Tally
from hermes_atropos.servers import ServerKind, Servers, make_model
from hermes_atropos.spec import SandboxSpec
from hermes_exec import ConfigError, ErrorCause, ExecError, ImageError, Slot
from hermes_exec.aio.tasks import PlainTaskGroup

_LOG = logging.getLogger(__name__)
_ADVICE_AFTER = 8
_CAUSES = 3

ItemT = TypeVar("ItemT")
OnGroup = Callable[[Sequence[Finished]], None]
OnItem = Callable[[Evaluated, int, int], None]


class Rolling(Generic[ItemT]):
    """The rollouts of an environment, and what became of them.

    `on_group` is called with each group that was filled, `on_item` with each item of an evaluation, how many there are
    so far, and how many in all.
    """

    def __init__(self, env: Environment[ItemT], kind: ServerKind) -> None:
        config = env.config
        self.kind = kind
        self.tally = Tally()
        self.on_group: OnGroup | None = None
        self.on_item: OnItem | None = None
        self._env = env
        self._template = ChatTemplate(env.tokenizer, chat_template=config.template_text)
        self._servers = Servers(env.server, config.server_wait_s)
        self._begun = 0
        self._kept = KeptGroups(max(1, config.max_batches_offpolicy))
        self._tasks: set[asyncio.Task[Any]] = set()
        self.filled = 0
        self.delivered = 0
        self._refused = 0
        self._failures: list[str] = []
        self._dropped: deque[str] = deque(maxlen=_CAUSES)
        self._same_scores = 0
        self._stopped: EnvironmentStopped | None = None

    async def run(self, work: Callable[[], Awaitable[None]], at_once: int) -> None:
        """Do this work, with so many groups at a time. Raises EnvironmentStopped when too many of them in a row were
        dropped. When it ends, however that is, every group has ended too.
        """
        self._room = anyio.CapacityLimiter(at_once)
        watch = asyncio.create_task(LoopWatch().run())
        try:
            with anyio.CancelScope() as self._scope:
                await work()
        finally:
            with anyio.CancelScope(shield=True):
                await _ended({*self._tasks, *self._env.workers, *self._env.eval_workers, self._env.eval_runner, watch})
        if self._stopped is not None:
            raise self._stopped

    async def group(self, item: ItemT) -> ScoredDataGroup | None:
        """A whole group, as a trainer reads it; None where it could not be filled."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        group = self._kept.take(item, self._env.curr_step) or self._new_group()
        try:
            async with self._room:
                await self._fill(item, group)
        except asyncio.CancelledError:
            self._kept.keep(item, group)
            raise
        except Exception as error:  # noqa: BLE001 - the group is dropped, and its cause told
            self._drop_group(item, group, error)
            return None
        finally:
            self._tasks.discard(task)
        self.filled += 1
        if self.on_group is not None:
            self.on_group(group.done)
        made = scored(group.done, self._env.config.sampling_parameters, phase=1 if self.kind == "openai" else 2)
        made["messages"] = self._env.pool.masked(made["messages"])
        return made

    def no_more_items(self) -> None:
        """Called each time that `serve` asks for an item and there is none: the last groups end the run. Raises as
        `check_written` does where none was filled.
        """
        if self._env.workers or self._env.backlog:
            return
        if not self.delivered:
            self._check_items("no group was sent")
        _LOG.warning("there are no more items: the environment ends")
        self._scope.cancel()

    def deliver(self, count: int) -> None:
        """Count groups that were written, or that the server of atropos took."""
        self.delivered += count
        self._failures.clear()

    def refuse(self, count: int, why: str) -> None:
        """Count groups that the server of atropos did not take."""
        self._refused += count
        for _ in range(count):
            self._drop("refused", f"a group: the server of atropos did not take it: {why}")

    def check_sent(self) -> None:
        """Raise EnvironmentStopped where the server of atropos did not take groups."""
        if self._refused:
            lost = f"{self._refused} groups are lost, {self.delivered} were sent"
            raise EnvironmentStopped(f"{lost}; the last:\n  {_list_causes(self._dropped)}")

    def check_written(self, wanted: int) -> None:
        """Warn of groups that `process` did not write for want of items. Raises EnvironmentStopped where some were
        dropped, ConfigError where there was no item.
        """
        if self.delivered >= wanted:
            return
        told = f"{self.delivered} of {wanted} groups were written"
        if self._dropped or not self.delivered:
            self._check_items(told)
        _LOG.warning("%s: there are no more items", told)

    def _check_items(self, told: str) -> None:
        if self._dropped:
            raise EnvironmentStopped(f"{told}; the last that were dropped:\n  {_list_causes(self._dropped)}")
        raise ConfigError(f"{self._env.name} has no items")

    async def once(self, item: ItemT) -> RolloutResult:
        """One rollout in a slot of its own, rolled again as long as nothing can be said of the model."""
        model, config = self.model(), self._env.config
        toolsets, rerolls = config.toolsets(0), 0
        try:
            spec = self._spec(item)
            rollout = self._rollout(item, spec, toolsets)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises, it spoils its own item only
            _LOG.exception("an item cannot be worked on")
            if isinstance(error, EnvironmentMistake):
                self.stop(str(error), ErrorCause.CONFIG)
            told = EpisodeError(0, "infra", type(error).__name__, str(error))
            return RolloutResult(None, error=told, exception=error, cause=ErrorCause.CONFIG)
        while True:
            result = _reroll_raised(await rollout.run(self._env.pool, model))
            known = result.reward is not None or result.finish == "deadline"
            if isinstance(result.exception, EnvironmentMistake | ServerReachable):
                self.stop(_why(result), ErrorCause.CONFIG)
            if known or _never_better(result) or rerolls >= config.max_rerolls:
                return result
            rerolls += 1
            rollout = self._rollout(item, spec, toolsets)

    def model(self) -> SessionModel:
        """The model, with the limits of now."""
        # Both atroposlib and the server of atropos drop a sequence that is as long as its limit.
        limits = [limit for limit in (self._env.config.max_token_length, self._env.max_token_len) if limit > 0]
        return make_model(
            self._servers,
            self.kind,
            self._template,
            parser=self._env.parser(),
            context_tokens=min(limits) - 1,
            name=str(self._env.server.servers[0].config.model_name),
        )

    def unusable(self, group: MutableMapping[str, Any], limit: int) -> bool:
        """Whether a group must not be sent, which is counted; `limit` is the trainer's of a sequence (0: none).

        The numbers of numpy and torch in it become Python's. One that is not finite is a mistake of
        `postprocess_histories`, and ends the run.
        """
        for name in group:
            group[name] = to_json(group[name])
        odd = find_odd_value(group)
        if odd is not None:
            author = f"{type(self._env).__name__}.postprocess_histories"
            self._drop(ErrorCause.CONFIG, f"a group: {author}: {odd}", final=True)
            return True
        size = int((group.get("group_overrides") or {}).get("group_size") or self._env.config.group_size)
        why = problem(group, size)
        longest = max(map(len, group.get("tokens") or ()), default=0)
        if why is None and 0 < limit <= longest:
            why = f"a sequence has {longest} ids, and the trainer takes {limit - 1}"
        if why is not None:
            self._drop("unusable", f"a group: {why}")
        return why is not None

    def watch_scores(self, scores: Sequence[float]) -> bool:
        """Return False for a group of equal scores, which atroposlib drops where it is told to, and count it."""
        if not self._env.config.ensure_scores_are_not_same or len(set(scores)) > 1:
            self._same_scores = 0
            return True
        self._failures.clear()
        self._dropped.append("a group: its scores are equal")
        self._same_scores += 1
        self.tally.drop("same_scores")
        if self._same_scores % _ADVICE_AFTER == 0:
            _LOG.warning(
                "the last %d groups had equal scores each, of which nothing is learnt, and were dropped: the tasks are "
                "too hard or too easy for the model (--env.ensure_scores_are_not_same false sends them all the same)",
                self._same_scores,
            )
        return False

    def drop_broken(self, author: str, error: Exception) -> None:
        """Count a group that the code of the environment raised an error for."""
        self._drop("bug", f"a group: {author}: {type(error).__name__}: {error}")

    def _spec(self, item: ItemT) -> SandboxSpec:
        with code_of(self._env, "sandbox_spec"):
            return self._env.sandbox_spec(item)

    def _new_group(self) -> Group:
        number = self._begun
        self._begun += 1
        return Group(number, self._env.config.toolsets(number), self._env.curr_step)

    async def _fill(self, item: ItemT, group: Group) -> None:
        """Roll until the group is whole. Raises what kept a rollout of it from its reward for good."""
        spec, model = self._spec(item), self.model()
        missing = self._env.config.group_size - len(group.done)
        if not missing:
            return
        lent = self._env.pool.slots(missing, spec.profile, spec.image, spec.workdir)
        async with lent as slots, PlainTaskGroup() as tasks:
            for slot in slots:
                tasks.start_soon(self._until_done, item, spec, model, group, slot)

    async def _until_done(self, item: ItemT, spec: SandboxSpec, model: SessionModel, group: Group, first: Slot) -> None:
        result = _reroll_raised(await self._rollout(item, spec, group.toolsets).run_in(first, model))
        # Whoever waits for a slot has it now, and not when the slowest of the group has ended.
        await self._env.pool.release(first)
        while True:
            self.tally.add(result)
            done = finished(result)
            if done is not None:
                group.done.append(done)
                return
            if _never_better(result) or group.rerolls >= self._env.config.max_rerolls:
                raise _Unfilled(result, group.rerolls) from result.exception
            group.rerolls += 1
            _LOG.info("a rollout of group %d is rolled again: %s", group.number, _why(result))
            result = _reroll_raised(await self._rollout(item, spec, group.toolsets).run(self._env.pool, model))

    def _rollout(self, item: ItemT, spec: SandboxSpec, toolsets: Sequence[str]) -> Rollout:
        env, config = self._env, self._env.config
        trajectory_id = uuid.uuid4().hex
        meta: dict[str, Any] = {}

        async def prepare(slot: Slot) -> None:
            await env.reach.check(slot, spec.profile)
            ctx = ToolContext(slot)
            with code_of(env, "setup_trajectory_workspace"):
                made = await env.setup_trajectory_workspace(item, trajectory_id=trajectory_id, exec_tool=ctx.exec_tool)
            meta.clear()
            meta.update(made or {})

        async def check(slot: Slot, episode: Episode) -> Verdict:
            ctx = ToolContext(slot, meta=meta)
            if not env.verifies:
                with code_of(env, "compute_reward"):
                    return _verdict(await env.compute_reward(item, episode, ctx))
            with code_of(env, "verify_and_score_trajectory"):
                given: Any = await env.verify_and_score_trajectory(
                    item, episode, trajectory_id=trajectory_id, exec_tool=ctx.exec_tool, workspace_meta=meta
                )
                if not isinstance(given, tuple) or len(given) != 2:
                    raise EnvironmentMistake(f"it returns a reward and a mapping, not {show_value(given)}")
                return _verdict(given[0])

        with code_of(env, "format_prompt"):
            messages = _messages(env.format_prompt(item), config.system_prompt)
        return Rollout(
            messages=messages,
            files=spec.files,
            prepare=prepare,
            cwd=spec.cwd,
            toolsets=toolsets if spec.toolsets is None else spec.toolsets,
            tools=spec.tools or None,
            tool_options=config.tool_options,
            scoring=Scoring(check=check, files=spec.check_files, score_in=spec.score_in, keep=spec.keep),
            image=spec.image,
            profile=spec.profile,
            workdir=spec.workdir,
            loop={
                "max_turns": config.max_agent_turns,
                "max_tokens": config.max_tokens_per_turn,
                "parallel_calls": config.parallel_calls,
                "temperature": config.agent_temperature,
                "sampling": config.further_sampling,
                "deadline_s": config.deadline_s,
                **spec.loop,
            },
        )

    def _drop_group(self, item: ItemT, group: Group, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, _Unfilled):
            # What is wrong for the first group, and not with the model, the machine or its item, is so for all.
            final = error.mistake or error.refused or (not self.filled and error.settled)
            self._drop(error.cause, f"group {group.number}: {error}", final=final)
        elif isinstance(error, EnvironmentMistake):
            self._drop(error.cause, f"group {group.number}: the code of the environment: {error}", final=True)
        elif isinstance(error, ExecError):
            settled = not error.retryable and self._spec(item).image is None
            final = not self.filled and settled and isinstance(error, ConfigError | ImageError)
            self._drop(error.cause, f"group {group.number}: {told}", final=final)
        else:
            _LOG.error("group %d was ended by %s", group.number, type(error).__name__, exc_info=error)
            self._drop("bug", f"group {group.number}: {told}", final=not self.filled)

    def _drop(self, kind: str, told: str, *, final: bool = False) -> None:
        """Count a group that is not sent; too many in a row end the run, or one of which no other will be better."""
        self.tally.drop(kind)
        causes = {one.partition(": ")[2] for one in self._failures}
        if told.partition(": ")[2] not in causes:
            _LOG.warning("dropped: %s", told)
        self._failures.append(told)
        self._dropped.append(told)
        if final or len(self._failures) >= self._env.config.max_failed_groups:
            last = _list_causes(self._failures[-_CAUSES:])
            cause = ErrorCause.CONFIG if kind is ErrorCause.CONFIG else None
            self.stop(f"groups in a row that were dropped: {len(self._failures)}\n  {last}", cause)

    def stop(self, why: str, cause: ErrorCause | None) -> None:
        """End the run."""
        self._stopped = EnvironmentStopped(why, cause=cause)
        self._scope.cancel()


class _Unfilled(Exception):
    """Raised when a rollout of a group cannot be had."""

    def __init__(self, result: RolloutResult, rerolls: int) -> None:
        super().__init__(_why(result) + (f" (after {rerolls} that were rolled again)" if rerolls else ""))
        self.cause = result.cause
        errors = () if result.episode is None else result.episode.errors
        self.refused = any(one.kind == AccessRefused.__name__ for one in errors)
        """A refused key is refused for every group."""
        self.mistake = isinstance(result.exception, EnvironmentMistake | ServerReachable)
        self.settled = result.cause is ErrorCause.CONFIG or _is_bug(result)


async def _ended(tasks: set[asyncio.Task[Any] | None]) -> None:
    """Cancel these tasks, and wait until they have ended."""
    under_way = [task for task in tasks - {None, asyncio.current_task()} if task is not None]
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)


def _list_causes(failures: Iterable[str]) -> str:
    """Return each cause once, of the last group that had it."""
    return "\n  ".join({one.partition(": ")[2]: one for one in failures}.values())


def _reroll_raised(result: RolloutResult) -> RolloutResult:
    """Return a result that is rolled again where a hook could not read what the model left."""
    raised = result.exception is not None and not isinstance(result.exception, ExecError)
    return replace(result, cause=ErrorCause.INFRA) if raised and result.cause is ErrorCause.CONFIG else result


def _never_better(result: RolloutResult) -> bool:
    """Whether another try comes out the same."""
    return result.cause in (ErrorCause.CONFIG, ErrorCause.TASK) or _too_long(result)


def _is_bug(result: RolloutResult) -> bool:
    """Whether a hook of the environment raised what nobody expects."""
    return result.exception is not None and not isinstance(result.exception, ExecError | OSError | CheckFailed)


def _too_long(result: RolloutResult) -> bool:
    """Whether the prompt alone leaves no room for an answer."""
    return result.finish == "context" and result.episode is not None and not result.episode.turns


def _messages(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _why(result: RolloutResult) -> str:
    """What kept a rollout from being of use."""
    error = result.failure
    told = result.finish if error is None else f"{result.finish}: {error.kind}: {error.message}"
    if isinstance(result.exception, EnvironmentMistake):
        told = f"the code of the environment: {result.exception}"
    elif _is_bug(result) and error is not None:
        told = f"the code of the environment: {error.kind}: {error.message}"
    return told + (", which --env.max_token_length bounds" if _too_long(result) else "")


def _verdict(given: object) -> Verdict:
    """Return what an environment gives as a reward. Raises EnvironmentMistake where that is no finite number."""
    try:
        if isinstance(given, Verdict):
            return check_verdict(given, "it")
        reward = to_float(given)
    except ConfigError as error:
        raise EnvironmentMistake(str(error)) from None
    except ValueError as error:
        raise EnvironmentMistake(f"a reward is a finite number, or a Verdict: {error}") from None
    return Verdict(reward, solved=reward >= 1)
