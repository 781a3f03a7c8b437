"""The base class of environments. It fills groups of rollouts in slots for atropos trainers."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import aiohttp
import anyio
from atroposlib.envs.base import BaseEnv, ScoredDataGroup
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerBaseline
from huggingface_hub import try_to_load_from_cache
from rich.console import Console
from tenacity import RetryError

from hermes_agent import Episode, Message, Verdict
from hermes_agent.parsers import Parser
from hermes_atropos import run_files
from hermes_atropos.config import SandboxEnvConfig
from hermes_atropos.context import ExecTool, ToolContext
from hermes_atropos.errors import EnvironmentStopped
from hermes_atropos.evaluation import EvaluatedItem, SampleFile, pass_rates, results_table
from hermes_atropos.hooks import check_hooks, guard_hooks
from hermes_atropos.metrics import format_conversation
from hermes_atropos.posting import post_json
from hermes_atropos.reachability import ReachabilityCheck
from hermes_atropos.rollout_scheduler import RolloutScheduler
from hermes_atropos.servers import ServerKind, check_logprobs, close_servers, innermost_error, validate_servers
from hermes_atropos.spec import SandboxSpec
from hermes_exec import ConfigError, SandboxPool

logger = logging.getLogger(__name__)
_DISCONNECT_S = 2.0

ItemT = TypeVar("ItemT")


class SandboxAgentEnv(BaseEnv, Generic[ItemT]):  # type: ignore[misc]
    """An environment whose rollouts are agent episodes in slots of a `SandboxPool`.

    A subclass defines `name`, `env_config_cls` and these methods: `setup`, `get_next_item` (None: no more items),
    `format_prompt`, and `compute_reward` or `verify_and_score_trajectory`. `sandbox_spec`, `setup_trajectory_workspace`
    and `evaluate` are optional. `pool` is open from before `setup` until the end.

    The slots of a group are acquired together, and all its rollouts have the same toolsets. A rollout that fails for
    reasons outside the model is rerolled, up to `max_rerolls` times per group. A group that cannot be filled is dropped
    and counted; `max_failed_groups` dropped groups in a row end the run with EnvironmentStopped. The trainer receives
    only complete groups with exact token ids (`hermes_agent.tokens`).
    """

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[type[SandboxEnvConfig]] = SandboxEnvConfig
    config: SandboxEnvConfig
    pool: SandboxPool

    def __init__(
        self,
        config: SandboxEnvConfig,
        server_configs: list[APIServerConfig] | ServerBaseline,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        check_hooks(type(self), SandboxAgentEnv)
        config = config.model_copy(update={"wandb_name": config.wandb_name or self.name or type(self).__name__})
        configs = validate_servers(server_configs, config)
        server_kind: ServerKind = "tinker" if config.inference_server == "tinker" else configs[0].server_type
        tokenizer = config.tokenizer_name
        if tokenizer.startswith((".", "/", "~")) and not Path(tokenizer).expanduser().is_dir():
            raise ConfigError(f"tokenizer_name: no such directory: {tokenizer}")
        if not Path(tokenizer).is_dir() and try_to_load_from_cache(tokenizer, "tokenizer_config.json") is None:
            self._print(f"fetching the tokenizer {tokenizer} from the Hugging Face Hub")
        run_files.make_directories(config)
        try:
            super().__init__(config, configs, slurm, testing)
        except OSError as error:
            raise ConfigError(f"the tokenizer {config.tokenizer_name!r} cannot be loaded: {error}") from error
        run_files.keep_groups_private(self.config)
        self._resumes = False
        self.reachability = ReachabilityCheck(None, tuple(server.base_url for server in configs if server.base_url))
        try:
            if self.server.proxy_url or self.server.use_proxy:
                raise ConfigError(
                    "ATROPOS_PROXY_URL is set, so atroposlib would send requests through its proxy, which drops tool "
                    "calls and log-probabilities: unset it"
                )
            self.scheduler = RolloutScheduler(self, server_kind)
        except ConfigError:
            run_files.close_groups(self.jsonl_writer, self.config)
            raise

    # Methods for subclasses.

    async def setup(self) -> None:
        """Load the data that items are made of.

        Raises:
            ConfigError: If the settings or the data are invalid.
        """

    async def get_next_item(self) -> ItemT | None:
        """Return the next item, or None if there are no more."""
        raise NotImplementedError

    def format_prompt(self, item: ItemT) -> str | Sequence[Message]:
        """Return the prompt: a text or a list of messages."""
        raise NotImplementedError

    def sandbox_spec(self, item: ItemT) -> SandboxSpec:
        """Return the slot of an item, the files in it and how the work is scored."""
        return SandboxSpec()

    async def setup_trajectory_workspace(
        self, item: ItemT, *, trajectory_id: str, exec_tool: ExecTool
    ) -> Mapping[str, Any] | None:
        """Prepare the slot before the episode. The return value becomes `ctx.meta` and `workspace_meta` for the reward.
        If `SandboxSpec.keep` names files, this is called again in the clean slot before these files are restored.

        With `fork_groups` it is called once for a group, with an id of the group. Each rollout runs in a fork of this
        slot and gets a deep copy of the return value.
        """

    async def compute_reward(self, item: ItemT, result: Episode, ctx: ToolContext) -> float | Verdict:
        """Return the reward: a number (1 or more means solved) or a `Verdict`. If this raises an exception,
        `on_reward_error` decides: by default the model is not blamed and the rollout is rerolled.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compute_reward")

    async def verify_and_score_trajectory(
        self,
        item: ItemT,
        result: Episode,
        *,
        trajectory_id: str,
        exec_tool: ExecTool,
        workspace_meta: Mapping[str, Any],
    ) -> tuple[float, Mapping[str, Any]]:
        """Return (reward, meta). May be defined instead of `compute_reward`."""
        raise NotImplementedError

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Evaluate the model; see `evaluate_items`."""
        raise ConfigError(f"{self.name} has no evaluation")

    def parser(self) -> str | Parser:
        """Return the format of the model's tool calls: its name, or a function (text, tools) → `ParsedText`."""
        return self.config.tool_call_parser

    # Commands of atroposlib.

    @classmethod
    def config_init(cls) -> tuple[SandboxEnvConfig, list[APIServerConfig]]:
        """Return the default settings and servers. Servers are a list, because atroposlib ignores the URL of a single
        server.
        """
        server = APIServerConfig(
            base_url="http://localhost:9001/v1", api_key="x", server_type="vllm", health_check=False
        )
        return cls.env_config_cls.model_validate({"wandb_name": cls.name}), [server]

    @property
    def verifies(self) -> bool:
        """Whether the environment defines `verify_and_score_trajectory` instead of `compute_reward`."""
        return type(self).verify_and_score_trajectory is not SandboxAgentEnv.verify_and_score_trajectory

    @classmethod
    def cli(cls) -> None:
        """Run the command line `serve | process | evaluate`, with the flags of atroposlib (`--config`, `--env.X`,
        `--openai.X`).
        """
        from hermes_atropos.cli.run import run_environment

        run_environment(cls)

    async def env_manager(self) -> None:
        """Run `serve`: fill groups for a trainer."""
        check_logprobs(self.scheduler.kind, self.config)
        if self.scheduler.kind == "openai" and not self.config.send_without_logprobs:
            raise ConfigError(
                "a chat server returns neither token ids nor log-probabilities, which trainers need: use a vllm or "
                "sglang server, or set --env.send_without_logprobs true"
            )
        if self.config.sequences != "main":
            raise ConfigError("serve needs --env.sequences main: atropos's server never passes on larger groups")
        if self.config.group_size == 1 and self.config.ensure_scores_are_not_same:
            raise ConfigError(
                "with group_size 1 every group has equal scores and is dropped: use a larger group_size, or set "
                "--env.ensure_scores_are_not_same false"
            )
        samplers = tuple(server.config.base_url for server in self.server.servers if server.config.base_url)
        self.reachability = ReachabilityCheck(self.config.rollout_server_url, samplers)
        get_item = self.get_next_item

        async def next_item() -> ItemT | None:
            item = await get_item()
            if item is None:
                self.scheduler.finish_if_idle()
            return item

        self.get_next_item = next_item  # type: ignore[method-assign]
        await self._run_in_pool(super().env_manager)
        self.scheduler.check_sent()

    async def process_manager(self) -> None:
        """Run `process`: write groups to a file."""
        self.max_token_len = self.config.max_token_length
        try:
            check_logprobs(self.scheduler.kind, self.config)
            await self._run_in_pool(super().process_manager)
            self.scheduler.check_written(self.n_groups_to_process)
        finally:
            run_files.close_groups(self.jsonl_writer, self.config)

    async def _run_evaluate(self) -> None:
        """Run `evaluate`: only the evaluation, continuing an earlier one in the same directory."""
        self._resumes = True
        await self._run_in_pool(super()._run_evaluate, in_groups=False)

    async def _run_in_pool(self, work: Callable[[], Awaitable[None]], *, in_groups: bool = True) -> None:
        """Run `work` with the pool open. At the end, whether it succeeds or not, stop the workers, release all slots,
        then disconnect from the atropos server.
        """
        try:
            async with self.config.make_pool() as self.pool:
                if self.config.uses_pool_image:
                    self._check_forks()
                    async with self.pool.slot() as slot:
                        await self.reachability.check(slot, None)
                guard_hooks(self, self.scheduler)
                await self.scheduler.run(work, self._set_group_limit() if in_groups else 1)
        except RetryError as error:
            cause = innermost_error(error)
            raise EnvironmentStopped(
                f"the atropos server ({self.config.rollout_server_url}): {type(cause).__name__}: {cause}"
            ) from error
        except Exception as error:
            if type(error).__module__.startswith("wandb"):
                raise ConfigError(f"wandb: {error}") from error
            raise
        finally:
            run_files.close_groups(self.jsonl_writer, self.config)
            with anyio.CancelScope(shield=True):
                await self._disconnect()
                await close_servers(self.server)

    def _check_forks(self) -> None:
        """Raise ConfigError if `fork_groups` needs checkpoints that slots with the pool's image cannot have."""
        if self.config.fork_groups:
            try:
                self.pool.check_checkpoints()
            except ConfigError as error:
                raise ConfigError(f"fork_groups: {error}") from None

    def _set_group_limit(self) -> int:
        """Set and return the number of groups at a time, as many as the pool has slots for. Raise ConfigError if the
        pool is too small for one group or for `max_num_workers` groups.
        """
        slots, size, wanted = self.pool.stats().slots_most, self.config.group_size, self.config.max_num_workers
        groups = slots // size
        if groups < 1:
            raise ConfigError(
                f"a group of {size} needs {size} slots, but the pool has at most {slots}: set max_sandboxes or "
                "slots_per_sandbox, or a smaller group_size"
            )
        if wanted > groups:
            raise ConfigError(
                f"max_num_workers is {wanted}, but {slots} slots are enough for {groups} groups of {size} only: set it "
                "to -1, or give the pool more slots"
            )
        at_once = groups if wanted < 1 else int(wanted)
        self.max_num_workers = self.config.max_num_workers = at_once
        return at_once

    async def _disconnect(self) -> None:
        """Disconnect from the atropos server. Otherwise this environment would still count there, and halve the share
        of the next one.
        """
        env_id = getattr(self, "env_id", None)
        if env_id is None:
            return
        url = f"{self.config.rollout_server_url}/disconnect-env"
        try:
            timeout = aiohttp.ClientTimeout(total=_DISCONNECT_S)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json={"env_id": env_id}):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("cannot disconnect this environment (%s): %s", url, error)

    async def get_server_info(self) -> None:
        """Read the batch settings of the trainer. Raise ConfigError if groups cannot fill its batches."""
        try:
            await super().get_server_info()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        batch, group = self.config.batch_size, self.config.group_size
        if batch > 0 and batch % group:
            raise ConfigError(f"the trainer's batch size {batch} is not a multiple of the group size {group}")

    async def get_status(self) -> None:
        """Read the queue status of the atropos server.

        Raises:
            EnvironmentStopped: If the server no longer knows this environment.
        """
        try:
            await self._ask_api(super().get_status)
        except RetryError as error:
            if getattr(innermost_error(error), "status", None) != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            raise EnvironmentStopped(
                f"the atropos server ({self.config.rollout_server_url}) no longer knows this environment: it "
                "was restarted or its data were reset. Restart the trainer, then this environment"
            ) from error

    async def _send_scored_data_to_api(self, scored_data: ScoredDataGroup | list[ScoredDataGroup]) -> None:
        count = len(scored_data) if isinstance(scored_data, list) else 1
        try:
            await self._ask_api(lambda: super(SandboxAgentEnv, self)._send_scored_data_to_api(scored_data))
        except RetryError as error:
            self.scheduler.count_refused(count, str(innermost_error(error)))
        else:
            self.scheduler.count_delivered(count)

    def _post_json_with_compression(
        self, session: aiohttp.ClientSession, url: str, payload: object, **_: object
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """See `post_json`."""
        return post_json(session, url, payload)

    async def _ask_api(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Send a request to the atropos server, and retry for up to `server_wait_s` seconds while it is unreachable."""
        end, warned = time.monotonic() + self.config.server_wait_s, False
        while True:
            try:
                return await ask()
            except RetryError as error:
                cause = innermost_error(error)
                if not isinstance(cause, aiohttp.ClientConnectionError | TimeoutError) or time.monotonic() > end:
                    raise
                if not warned:
                    logger.warning("waiting for the atropos server (%s): %s", self.config.rollout_server_url, cause)
                warned = True
                await anyio.sleep(1)

    async def collect_trajectories(self, item: ItemT) -> tuple[ScoredDataGroup | None, list[ItemT]]:
        """Return a complete group of rollouts, or None if it could not be filled."""
        return await self.scheduler.fill_group(item), []

    async def handle_send_to_api(
        self,
        scored_data: ScoredDataGroup | list[ScoredDataGroup],
        item: ItemT | None = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Write and send groups. A group that atroposlib would drop or a trainer could not read is counted with its
        cause.
        """
        groups = scored_data if isinstance(scored_data, list) else [scored_data]
        limit = max(0, self.max_token_len) if abort_on_any_max_length_exceeded else 0
        if any(self.scheduler.drop_unusable(group, limit) for group in groups):
            return
        kept = sum(self.scheduler.watch_scores(group["scores"]) for group in groups)
        await super().handle_send_to_api(scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)
        if kept and not do_send_to_api:
            self.scheduler.count_delivered(kept)

    async def evaluate_items(
        self,
        items: Iterable[ItemT],
        *,
        key: Callable[[ItemT], str],
        category: Callable[[ItemT], str | None] | None = None,
    ) -> list[EvaluatedItem]:
        """Evaluate each item `eval_samples` times, `max_eval_workers` rollouts at a time, but no more than the pool has
        slots. Return the results in order of completion.

        If `data_dir_to_save_evals` is set, each result is appended to `samples.jsonl` there as soon as it is known, and
        the command `evaluate` continues an existing file (`serve` writes one file per step). A rollout without a result
        is rerolled up to `max_rerolls` times. The metrics `eval/…` are written to `metrics.json` there and to
        wandb.

        Raises:
            ConfigError: If two items have the same key.
        """
        keys = [(key(item), item) for item in items]
        if (different := len({name for name, _ in keys})) < len(keys):
            raise ConfigError(f"{len(keys)} items have only {different} different keys")
        started, samples = time.time(), self._open_samples()
        wanted = {(name, number): item for number in range(self.config.eval_samples) for name, item in keys}
        earlier = [] if samples is None else samples.earlier
        done = [each for each in earlier if wanted.pop((each.key, each.sample), None) is not None]
        total = len(done) + len(wanted)
        if samples is not None and done:
            self._print(f"{len(done)} of {total} results are reused from {samples.path}")
        workers = anyio.CapacityLimiter(min(self.config.max_eval_workers, self.pool.stats().slots_most))

        async def evaluate_item(name: str, number: int, item: ItemT) -> None:
            async with workers:
                result, rerolls = await self.scheduler.run_item(item)
            done.append(EvaluatedItem.of(name, number, None if category is None else category(item), result, rerolls))
            if samples is not None:
                messages = [] if result.episode is None else result.episode.messages
                samples.write(self.pool.mask({**asdict(done[-1]), "messages": messages}))
            if self.scheduler.on_item is not None:
                self.scheduler.on_item(done[-1], len(done), total)

        try:
            async with anyio.create_task_group() as tasks:
                for (name, number), item in wanted.items():
                    tasks.start_soon(evaluate_item, name, number, item)
        finally:
            if samples is not None:
                samples.close()
        await self._report_evaluation(done, started)
        if self._resumes and done and all(result.solved is None for result in done):
            raise EnvironmentStopped(f"none of the {total} rollouts has a result; the last error: {done[-1].error}")
        return done

    def _print(self, text: object) -> None:
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)

    def _open_samples(self) -> SampleFile | None:
        directory = self.config.data_dir_to_save_evals
        if directory is None:
            return None
        name = "samples.jsonl" if self._resumes else f"samples_step_{self.curr_step}.jsonl"
        return SampleFile(Path(directory) / name, resume=self._resumes)

    async def _report_evaluation(self, done: Sequence[EvaluatedItem], started: float) -> None:
        metrics = pass_rates(done)
        if self._resumes:
            self._print(results_table(str(self.name), done))
        if self.config.data_dir_to_save_evals is not None:
            await self.evaluate_log(metrics, start_time=started, end_time=time.time(), verbose=False)
            run_files.keep_metrics_private(self.config)
        if self.config.use_wandb and not self._resumes:
            import wandb

            wandb.log({f"{self.wandb_prepend}_{name}": value for name, value in metrics.items()}, step=self.curr_step)

    # Logging to wandb.

    async def add_rollouts_for_wandb(self, scored_data: ScoredDataGroup, item: ItemT | None = None) -> None:
        """Keep conversations for the table of rollouts. Messages that the trainer must not receive are removed here."""
        keep = self.config.num_rollouts_per_group_for_logging
        texts = [
            format_conversation(messages)
            for messages in (scored_data.get("messages") or [])[: keep if keep >= 0 else None]
        ]
        self.rollouts_for_wandb.append(list(zip(texts, scored_data["scores"], strict=False)))
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep]
        if not self.config.include_messages:
            del scored_data["messages"]

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log the metrics of atroposlib and of `RolloutTally`."""
        own = self.scheduler.tally.read(self.pool.stats(), self.scheduler.loop_watch.take_lateness())
        await super().wandb_log({**self.pool.mask(own), **(wandb_metrics or {})})
