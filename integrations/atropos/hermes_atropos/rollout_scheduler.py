"""The scheduler of rollouts. It fills groups, rerolls rollouts that infrastructure spoiled, and drops groups that
cannot be filled.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

import anyio
from atroposlib.envs.base import ScoredDataGroup

from hermes_agent import (
    Episode,
    EpisodeError,
    Message,
    Rollout,
    RolloutResult,
    Scoring,
    Verdict,
)
from hermes_agent.models.base import SessionModel
from hermes_agent.rewards import show_value
from hermes_agent.tokens import ChatTemplate
from hermes_atropos.context import ToolContext
from hermes_atropos.environment import Environment
from hermes_atropos.errors import EnvironmentMistake, EnvironmentStopped, ServerReachable
from hermes_atropos.evaluation import EvaluatedItem
from hermes_atropos.group_set_up import GroupSetUp
from hermes_atropos.groups import (
    Group,
    KeptGroups,
    find_odd_value,
    find_problem,
    finish_rollout,
    make_scored_data,
    to_json,
)
from hermes_atropos.hooks import translate_hook_errors
from hermes_atropos.loop_watch import LoopWatch
from hermes_atropos.metrics import RolloutTally
from hermes_atropos.rollout_outcomes import (
    RolloutFailed,
    explain_outcome,
    find_reroll_cause,
    is_final,
    judge_reward_error,
    mark_for_reroll,
    to_verdict,
)
from hermes_atropos.servers import ServerKind, Servers, make_model
from hermes_atropos.spec import SandboxSpec, agent_options
from hermes_exec import ConfigError, ErrorCause, ExecError, ImageError, Slot
from hermes_exec.aio.tasks import PlainTaskGroup

logger = logging.getLogger(__name__)
_ADVICE_INTERVAL = 8
_MAX_CAUSES = 3
_SMALL_SHARE = 0.5

ItemT = TypeVar("ItemT")
OnGroup = Callable[[Group], None]
OnItem = Callable[[EvaluatedItem, int, int], None]


class RolloutScheduler(Generic[ItemT]):
    """Runs the rollouts of an environment and counts their outcomes.

    `on_group` is called with each filled group. `on_item` is called with each item of an evaluation, the number of
    items so far and the total.
    """

    def __init__(self, env: Environment[ItemT], kind: ServerKind) -> None:
        config = env.config
        self.kind = kind
        self.tally = RolloutTally()
        self.loop_watch = LoopWatch()
        self.on_group: OnGroup | None = None
        self.on_item: OnItem | None = None
        self._env = env
        self._template = ChatTemplate(env.tokenizer, chat_template=config.template_text)
        self._servers = Servers(env.server, config.server_wait_s)
        self._group_count = 0
        self._kept_groups = KeptGroups(max(1, config.max_batches_offpolicy))
        self._tasks: set[asyncio.Task[Any]] = set()
        self.filled = 0
        self.delivered = 0
        self._refused_count = 0
        self._failures: list[str] = []
        self._recent_drops: deque[str] = deque(maxlen=_MAX_CAUSES)
        self._same_scores = 0
        self._warned_of_share = False
        self._stop_error: EnvironmentStopped | None = None

    async def run(self, work: Callable[[], Awaitable[None]], at_once: int) -> None:
        """Run `work` with up to `at_once` groups at a time. When this returns, every group has ended.

        Raises:
            EnvironmentStopped: If too many groups in a row were dropped.
        """
        self._group_limiter = anyio.CapacityLimiter(at_once)
        # Full collections of the million objects of imported libraries would stop the event loop for half a second.
        gc.collect()
        gc.freeze()
        watch = asyncio.create_task(self.loop_watch.run())
        try:
            with anyio.CancelScope() as self._scope:
                await work()
        finally:
            gc.unfreeze()
            with anyio.CancelScope(shield=True):
                await _cancel_all(
                    {*self._tasks, *self._env.workers, *self._env.eval_workers, self._env.eval_runner, watch}
                )
        if self._stop_error is not None:
            raise self._stop_error

    async def fill_group(self, item: ItemT) -> ScoredDataGroup | None:
        """Return a complete group in the trainers' format, or None if it could not be filled."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        group = self._kept_groups.take(item, self._env.curr_step) or self._new_group()
        try:
            async with self._group_limiter:
                await self._fill(item, group)
        except asyncio.CancelledError:
            self._kept_groups.keep(item, group)
            raise
        except Exception as error:  # noqa: BLE001 - the group is dropped and its cause logged
            self._drop_group(item, group, error)
            return None
        finally:
            self._tasks.discard(task)
        self.filled += 1
        if self.on_group is not None:
            self.on_group(group)
        phase = 1 if self.kind == "openai" else 2
        scored_group = make_scored_data(group.done, self._env.config.sampling_parameters, phase=phase)
        scored_group["messages"] = self._env.pool.mask(scored_group["messages"])
        return scored_group

    def finish_if_idle(self) -> None:
        """End the run when its last groups have ended. Called each time `serve` asks for an item and there is none.
        Raises as `check_written` does if no group was filled.
        """
        if self._env.workers or self._env.backlog:
            return
        if not self.delivered:
            self._check_items("no group was sent")
        logger.warning("no more items: the environment stops")
        self._scope.cancel()

    def count_delivered(self, count: int) -> None:
        """Count groups that were written or accepted by the atropos server."""
        self.delivered += count
        self._failures.clear()

    def count_refused(self, count: int, why: str) -> None:
        """Count groups that the atropos server refused."""
        self._refused_count += count
        for _ in range(count):
            self._drop("refused", f"a group: the atropos server refused it: {why}")

    def check_sent(self) -> None:
        """Raise EnvironmentStopped if the atropos server refused groups."""
        if self._refused_count:
            lost = f"{self._refused_count} groups were lost, {self.delivered} were sent"
            raise EnvironmentStopped(f"{lost}; the last:\n  {_list_causes(self._recent_drops)}")

    def check_written(self, wanted: int) -> None:
        """Warn if `process` wrote fewer groups than requested because it ran out of items.

        Raises:
            EnvironmentStopped: If groups were dropped.
            ConfigError: If there was no item.
        """
        if self.delivered >= wanted:
            return
        summary = f"{self.delivered} of {wanted} groups were written"
        if self._recent_drops or not self.delivered:
            self._check_items(summary)
        logger.warning("%s: no more items", summary)

    def _check_items(self, summary: str) -> None:
        if self._recent_drops:
            raise EnvironmentStopped(f"{summary}; the last dropped groups:\n  {_list_causes(self._recent_drops)}")
        raise ConfigError(f"{self._env.name} has no items")

    async def run_item(self, item: ItemT) -> tuple[RolloutResult, Counter[str]]:
        """Run one rollout in its own slot, and reroll it until there is a result. Return it with the number of rerolls
        by cause.
        """
        model, config = self.model(), self._env.config
        toolsets, rerolls = config.toolsets(0), Counter[str]()
        try:
            spec = self._spec(item)
            rollout = self._rollout(item, spec, toolsets)
        except Exception as error:  # a hook may raise anything; only its own item fails
            logger.exception("an item cannot be rolled out")
            if isinstance(error, EnvironmentMistake):
                self.stop(str(error), ErrorCause.CONFIG)
            failure = EpisodeError(0, "infra", type(error).__name__, str(error))
            return RolloutResult(None, error=failure, exception=error, cause=ErrorCause.CONFIG), rerolls
        while True:
            result = mark_for_reroll(await rollout.run(self._env.pool, model))
            has_result = result.reward is not None or result.finish == "deadline"
            if isinstance(result.exception, EnvironmentMistake | ServerReachable):
                self.stop(explain_outcome(result), ErrorCause.CONFIG)
            if has_result or is_final(result) or rerolls.total() >= config.max_rerolls:
                return result, rerolls
            rerolls[find_reroll_cause(result)] += 1
            rollout = self._rollout(item, spec, toolsets)

    def model(self) -> SessionModel:
        """Return the model with the current limits."""
        # atroposlib and the atropos server both drop a sequence that is as long as its limit.
        limits = [limit for limit in (self._env.config.max_token_length, self._env.max_token_len) if limit > 0]
        return make_model(
            self._servers,
            self.kind,
            self._template,
            parser=self._env.parser(),
            context_tokens=min(limits) - 1,
            name=str(self._env.server.servers[0].config.model_name),
        )

    def drop_unusable(self, group: MutableMapping[str, Any], limit: int) -> bool:
        """Count a group and return True if it must not be sent. `limit` is the trainer's limit of a sequence (0: none).

        Numbers of numpy and torch in the group are converted to Python's. A number that is not finite is a mistake in
        `postprocess_histories` and stops the run.
        """
        for name in group:
            group[name] = to_json(group[name])
        odd = find_odd_value(group)
        if odd is not None:
            author = f"{type(self._env).__name__}.postprocess_histories"
            self._drop(ErrorCause.CONFIG, f"a group: {author}: {odd}", final=True)
            return True
        size = int((group.get("group_overrides") or {}).get("group_size") or self._env.config.group_size)
        why = find_problem(group, size)
        longest = max(map(len, group.get("tokens") or ()), default=0)
        if why is None and 0 < limit <= longest:
            why = f"a sequence has {longest} ids, but the trainer accepts at most {limit - 1}"
        if why is not None:
            self._drop("unusable", f"a group: {why}")
        return why is not None

    def watch_scores(self, scores: Sequence[float]) -> bool:
        """Return True if atroposlib keeps the group. Count it and return False if it drops equal scores."""
        if not self._env.config.ensure_scores_are_not_same or len(set(scores)) > 1:
            self._same_scores = 0
            return True
        self._failures.clear()
        self._recent_drops.append("a group: its scores are equal")
        self._same_scores += 1
        self.tally.drop("same_scores")
        if self._same_scores % _ADVICE_INTERVAL == 0:
            logger.warning(
                "dropped the last %d groups: the scores in each were equal, so they teach nothing. The tasks are too "
                "hard or too easy for the model (--env.ensure_scores_are_not_same false sends such groups)",
                self._same_scores,
            )
        return False

    def drop_broken(self, author: str, error: Exception) -> None:
        """Count a group that was dropped because the environment's code raised an error."""
        self._drop("bug", f"a group: {author}: {type(error).__name__}: {error}")

    def _spec(self, item: ItemT) -> SandboxSpec:
        with translate_hook_errors(self._env, "sandbox_spec"):
            return self._env.sandbox_spec(item)

    def _new_group(self) -> Group:
        number = self._group_count
        self._group_count += 1
        return Group(number, self._env.config.toolsets(number), self._env.curr_step)

    async def _fill(self, item: ItemT, group: Group) -> None:
        """Run rollouts until the group is complete. Raises RolloutFailed if a rollout fails for good."""
        spec, model = self._spec(item), self.model()
        missing = self._env.config.group_size - len(group.done)
        if not missing:
            return
        if self._env.config.fork_groups:
            await self._fill_with_forks(item, spec, model, group, missing)
            return
        acquisition = self._env.pool.slots(missing, spec.profile, spec.image, spec.workdir)
        async with acquisition as slots, PlainTaskGroup() as tasks:
            for slot in slots:
                tasks.start_soon(self._roll_in, slot, item, spec, model, group)

    async def _fill_with_forks(
        self, item: ItemT, spec: SandboxSpec, model: SessionModel, group: Group, missing: int
    ) -> None:
        set_up = GroupSetUp()
        try:
            async with PlainTaskGroup() as tasks:
                for _ in range(missing):
                    tasks.start_soon(self._roll, item, spec, model, group, set_up)
        finally:
            await set_up.shared.drop()

    async def _roll_in(self, slot: Slot, item: ItemT, spec: SandboxSpec, model: SessionModel, group: Group) -> None:
        result = await self._rollout(item, spec, group.toolsets).run_in(slot, model)
        # Released now, not when the slowest rollout of the group ends, because others wait for slots.
        await self._env.pool.release(slot)
        await self._roll(item, spec, model, group, None, result)

    async def _roll(
        self,
        item: ItemT,
        spec: SandboxSpec,
        model: SessionModel,
        group: Group,
        set_up: GroupSetUp | None,
        first: RolloutResult | None = None,
    ) -> None:
        """Run a rollout until it has a reward. `first` is the result of the first attempt, if that was made before."""
        result = first
        while True:
            if result is None:
                result = await self._rollout(item, spec, group.toolsets, set_up).run(self._env.pool, model)
            result = mark_for_reroll(result)
            self.tally.add(result)
            done = finish_rollout(result, self._env.config.sequences)
            if done is not None:
                self._note_share(done.share)
                group.done.append(done)
                return
            if is_final(result) or group.rerolls.total() >= self._env.config.max_rerolls:
                raise RolloutFailed(result, group.rerolls.total()) from result.exception
            cause = find_reroll_cause(result)
            group.rerolls[cause] += 1
            self.tally.reroll(cause)
            logger.info("rerolling a rollout of group %d: %s", group.number, explain_outcome(result))
            result = None

    def _note_share(self, share: float) -> None:
        """Count the share of a rollout's sampled ids that is trained, and warn once if it is small."""
        self.tally.add_share(share)
        if share < _SMALL_SHARE and not self._warned_of_share:
            self._warned_of_share = True
            logger.warning(
                "only %d %% of the ids that were sampled for a program are trained: the others are in other "
                "conversations (--env.sequences is %s)",
                100 * share,
                self._env.config.sequences,
            )

    def _rollout(
        self, item: ItemT, spec: SandboxSpec, toolsets: Sequence[str], set_up: GroupSetUp | None = None
    ) -> Rollout:
        env, config = self._env, self._env.config
        trajectory_id = uuid.uuid4().hex
        set_up_id, meta = (trajectory_id, {}) if set_up is None else (set_up.id, set_up.meta)

        async def prepare(slot: Slot) -> None:
            await env.reachability.check(slot, spec.profile)
            ctx = ToolContext(slot)
            with translate_hook_errors(env, "setup_trajectory_workspace"):
                facts = await env.setup_trajectory_workspace(item, trajectory_id=set_up_id, exec_tool=ctx.exec_tool)
            meta.clear()
            meta.update(facts or {})
            if set_up is not None:
                set_up.copy_meta()

        async def check(slot: Slot, episode: Episode) -> Verdict:
            own_meta = meta if set_up is None else set_up.copy_meta()
            try:
                return await compute(ToolContext(slot, meta=own_meta), episode, own_meta)
            except Exception as error:  # noqa: BLE001 - the code of a reward may raise anything
                return judge_reward_error(error, config.on_reward_error)

        async def compute(ctx: ToolContext, episode: Episode, meta: Mapping[str, Any]) -> Verdict:
            if not env.verifies:
                with translate_hook_errors(env, "compute_reward"):
                    return to_verdict(await env.compute_reward(item, episode, ctx))
            with translate_hook_errors(env, "verify_and_score_trajectory"):
                outcome: Any = await env.verify_and_score_trajectory(
                    item, episode, trajectory_id=trajectory_id, exec_tool=ctx.exec_tool, workspace_meta=meta
                )
                if not isinstance(outcome, tuple) or len(outcome) != 2:
                    raise EnvironmentMistake(f"it must return a reward and a mapping, not {show_value(outcome)}")
                return to_verdict(outcome[0])

        if spec.program is not None and self.kind == "openai":
            raise ConfigError("a program needs a server of token ids: a chat server returns none")
        with translate_hook_errors(env, "format_prompt"):
            messages = _messages(env.format_prompt(item), config.system_prompt)
        return Rollout(
            messages=messages,
            files=spec.files,
            prepare=prepare,
            cwd=spec.cwd,
            scoring=Scoring(check=check, files=spec.check_files, score_in=spec.score_in, keep=spec.keep),
            image=spec.image,
            profile=spec.profile,
            workdir=spec.workdir,
            shared=None if set_up is None else set_up.shared,
            **agent_options(spec, config, toolsets),
        )

    def _drop_group(self, item: ItemT, group: Group, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, RolloutFailed):
            # An error of the first group that is not due to the model, the host or its item will recur in every group.
            final = error.mistake or error.refused or (not self.filled and error.settled)
            self._drop(error.cause, f"group {group.number}: {error}", final=final)
        elif isinstance(error, EnvironmentMistake):
            self._drop(error.cause, f"group {group.number}: the code of the environment: {error}", final=True)
        elif isinstance(error, ExecError):
            settled = not error.retryable and self._spec(item).image is None
            final = not self.filled and settled and isinstance(error, ConfigError | ImageError)
            self._drop(error.cause, f"group {group.number}: {message}", final=final)
        else:
            logger.error("group %d failed with %s", group.number, type(error).__name__, exc_info=error)
            self._drop("bug", f"group {group.number}: {message}", final=not self.filled)

    def _drop(self, kind: str, message: str, *, final: bool = False) -> None:
        """Count a group that is not sent. Stop the run after too many in a row, or if every other group would fail too
        (`final`).
        """
        self.tally.drop(kind)
        causes = {failure.partition(": ")[2] for failure in self._failures}
        if message.partition(": ")[2] not in causes:
            logger.warning("dropped: %s", message)
        self._failures.append(message)
        self._recent_drops.append(message)
        if final or len(self._failures) >= self._env.config.max_failed_groups:
            last = _list_causes(self._failures[-_MAX_CAUSES:])
            cause = ErrorCause.CONFIG if kind is ErrorCause.CONFIG else None
            self.stop(f"dropped groups in a row: {len(self._failures)}\n  {last}", cause)

    def stop(self, why: str, cause: ErrorCause | None) -> None:
        """Stop the run."""
        self._stop_error = EnvironmentStopped(why, cause=cause)
        self._scope.cancel()


async def _cancel_all(tasks: set[asyncio.Task[Any] | None]) -> None:
    """Cancel these tasks and wait until they have ended."""
    running = [task for task in tasks - {None, asyncio.current_task()} if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _list_causes(failures: Iterable[str]) -> str:
    """Return each cause once, with the last group that had it."""
    return "\n  ".join({failure.partition(": ")[2]: failure for failure in failures}.values())


def _messages(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return messages if system is None else [{"role": "system", "content": system}, *messages]
