"""The configuration of a batch run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator

from hermes_agent import Artifacts, CommandCheck, Model, Rollout, Scoring, SessionModel
from hermes_agent.models.embedded.embedded import EMBEDDED_NAME
from hermes_agent.models.factory import EMBEDDED, create_model
from hermes_agent.scoring import Files, ScoreIn, check_inside
from hermes_agent.turn import ParallelCalls, parse_parallel_calls
from hermes_batch.artifacts import artifact_directory
from hermes_batch.dataset import Extra, read_dataset
from hermes_batch.rows.source import parse_dataset
from hermes_batch.selection import parse_shard, select_tasks
from hermes_batch.task import Task
from hermes_batch.task_checks import TaskChecks
from hermes_batch.task_slot import SetUpCommand, make_profile
from hermes_batch.units import Unit
from hermes_exec import BackendConfig, ConfigError, SandboxPool, config_type
from hermes_exec.config import ConfigModel
from hermes_exec.tools import Draw, ToolOptions, draw_toolsets, select

_LOOP = (
    *("max_turns", "max_tool_calls", "parallel_calls", "temperature", "max_tokens"),
    *("deadline_s", "max_tokens_total", "max_cost", "max_tool_seconds"),
)
"""The settings that are arguments of `AgentLoop`."""
_SELECTION = ("ids", "shuffle", "offset", "limit", "shard")
"""The settings that are arguments of `select_tasks`."""
_DISK_WAIT_S = 5.0
_SHARED_CONTAINER_SLOTS = 8
_WHOLE_CONTAINER_OPTIONS = frozenset(
    {"limits", "cpuset_cpus", "shm_size_mb", "slot_root", "user", "cap_drop", "runtime"}
)
"""Options that mean something else, or prevent isolation, if several slots share a container."""


class BatchConfig(ConfigModel):
    """The settings of `run_batch`.

    `dataset` is a file of prompts, or `hf:PATH:SPLIT` (see `hermes_batch.dataset`). `columns` maps entries to the
    columns that have their values. `extra` decides about unknown entries ("refuse", or "metadata": keep them in the
    record). `out` is the directory of the results. A prompt's own entries take precedence over settings of the same
    name.

    `model` is a model name for `OpenAIModel` (with `base_url`, `api_key`, `parser`, `text_tools`, `stream`,
    `max_retries`, `wait_outage_s`, and `request_timeout_s` as its `timeout_s`), "embedded", or a model object. A
    request waits up to `wait_outage_s` seconds for an endpoint that is down. Then its prompt returns to the queue, and
    the run keeps waiting (`on_outage="wait"`) or stops and leaves the rest undone ("stop"). A run whose endpoint has
    never answered stops in either case. A prompt whose slot failed is retried up to `retries` times before its record
    is written.

    `backend`, `image` and `backend_options` are for the pool; a prompt's own image takes precedence over `image`. On
    Docker with sealed checks `slots_per_sandbox` is 8 by default, unless an option is meant for whole containers.
    `workers` prompts are worked on at a time. `ids`, `shuffle` (a seed), `offset`, `limit` and `shard` ("2/16") select
    prompts in this order (see `hermes_batch.selection.select_tasks`), and each of them gets `samples` episodes. With a
    `seed`, each sample has a seed that follows from it, the prompt's content and the number of the sample, if the model
    supports seeds. `max_tokens` limits one completion; `temperature` and `sampling` are passed to the model.
    `max_turns`, `max_tool_calls`, `deadline_s`, `max_tokens_total`, `max_cost` and `max_tool_seconds` limit an episode,
    and `parallel_calls` sets which calls of a turn run at the same time ("safe", "all" or a number); see `AgentLoop`.

    `score_in` and `check_timeout_s` apply to the checks (see `hermes_agent.Scoring`), and `setup_timeout_s` to the
    prompts' set-up commands. With a `distribution`, the toolsets of each sample are drawn from it instead of
    `toolsets`, with `seed` (default 0), the prompt's content and the sample's number. `strict` refuses toolsets that
    have no available tool.
    `collect` are paths or patterns of files of the work directory, which are copied to `artifacts/` at the end of each
    episode, besides those of the prompt: at most `collect_limit_mb` MiB and 1,000 files of each episode.
    `tool_options` are fields of `ToolOptions`. `overwrite` replaces the results of an earlier run in `out`; without it,
    existing results raise ConfigError.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dataset: Path | str
    columns: dict[str, str] = Field(default_factory=dict)
    extra: Extra = "refuse"
    out: Path
    model: Any
    base_url: str | None = None
    api_key: SecretStr = SecretStr("none")
    parser: str | None = None
    text_tools: bool = False
    request_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    stream: bool | Literal["auto"] = "auto"
    max_retries: Annotated[int, Field(ge=0)] = 4
    wait_outage_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1800.0
    on_outage: Literal["wait", "stop"] = "wait"
    retries: Annotated[int, Field(ge=0)] = 2
    backend: Any = "local"
    image: str | None = None
    backend_options: dict[str, Any] = Field(default_factory=dict)
    slots_per_sandbox: Annotated[int, Field(ge=1)] | None = None
    max_sandboxes: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[int, Field(ge=1)] = 4
    max_turns: Annotated[int, Field(ge=1)] = 30
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    parallel_calls: ParallelCalls = "safe"
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tokens_total: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tool_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    toolsets: tuple[str, ...] = ("terminal", "file")
    distribution: str | None = None
    strict: bool = False
    tool_options: dict[str, Any] = Field(default_factory=dict)
    system_prompt: str | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    shuffle: int | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1)] | None = None
    shard: str | None = None
    samples: Annotated[int, Field(ge=1)] = 1
    seed: int | None = None
    check_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    setup_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    score_in: ScoreIn = "sealed"
    collect: tuple[str, ...] = ()
    collect_limit_mb: Annotated[int, Field(ge=1)] = 256
    overwrite: bool = False

    @field_validator("dataset")
    @classmethod
    def _parse_dataset(cls, dataset: Path | str) -> Path | str:
        source = parse_dataset(dataset)
        return source if isinstance(source, Path) else str(source)

    @field_validator("collect")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            check_inside(pattern)
        return patterns

    @field_validator("parallel_calls", mode="before")
    @classmethod
    def _parse_calls(cls, value: object) -> ParallelCalls:
        return parse_parallel_calls(value)

    @field_validator("shard")
    @classmethod
    def _check_shard(cls, shard: str | None) -> str | None:
        if shard is not None:
            parse_shard(shard)
        return shard

    @field_validator("tool_options")
    @classmethod
    def _check_tools(cls, values: dict[str, Any]) -> dict[str, Any]:
        ToolOptions.of(values)
        return values

    @property
    def model_name(self) -> str:
        """The name of the model in the records."""
        if self.model == EMBEDDED:
            return EMBEDDED_NAME
        return (
            self.model if isinstance(self.model, str) else str(getattr(self.model, "model", type(self.model).__name__))
        )

    def make_model(self) -> Model | SessionModel:
        """Return the model.

        Raises:
            ConfigError: If a package that the model needs is not installed.
        """
        if not isinstance(self.model, str):
            model: Model | SessionModel = self.model
            return model
        key = self.api_key.get_secret_value()
        return create_model(
            self.model,
            base_url=self.base_url,
            api_key=key,
            parser=self.parser,
            text_tools=self.text_tools,
            request_timeout_s=self.request_timeout_s,
            stream=self.stream,
            max_retries=self.max_retries,
            wait_outage_s=self.wait_outage_s,
        )

    def toolsets_of(self, unit: Unit) -> tuple[str, ...]:
        """Return the toolsets of a sample: drawn for it, or the run's.

        Raises:
            ConfigError: If a toolset is unknown.
        """
        if unit.task.toolsets is not None:
            return tuple(unit.task.toolsets)
        if self.distribution is None:
            select(self.toolsets, strict=self.strict)
            return self.toolsets
        return self._draw(self.distribution, unit).toolsets

    def unavailable_tools(self, units: Iterable[Unit]) -> tuple[str, ...]:
        """Return the drawn toolsets that have no available tool, or without a distribution the unavailable tools of
        `toolsets`.
        """
        if self.distribution is None:
            return select(self.toolsets).unavailable
        drawn = (self._draw(self.distribution, unit).dropped for unit in units)
        return tuple(dict.fromkeys(name for dropped in drawn for name in dropped))

    def _draw(self, distribution: str, unit: Unit) -> Draw:
        return draw_toolsets(distribution, self.seed or 0, unit.task.group, unit.sample, strict=self.strict)

    def read_tasks(self) -> list[Task]:
        """Return the selected prompts of the dataset.

        Raises:
            ConfigError: If the dataset cannot be read, has errors, or has a prompt that cannot run with these settings,
                or if no prompt is selected.
        """
        checks = TaskChecks(self.backend, self.image, self.backend_options, strict=self.strict)
        tasks = read_dataset(self.dataset, self.extra, self.columns, checks)
        return select_tasks(tasks, **{name: getattr(self, name) for name in _SELECTION})

    def make_rollout(self, unit: Unit) -> Rollout:
        """Return the rollout of a sample of a prompt."""
        task = unit.task
        messages = task.beginning
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        files: Files = {**({} if task.tree is None else {".": task.tree}), **task.files}
        scoring = None
        if task.check is not None:
            check = CommandCheck(task.check, task.check_timeout_s or self.check_timeout_s)
            scoring = Scoring(check=check, files=task.check_files, score_in=self._score_in(task), keep=task.keep)
        seed = {} if self.seed is None else {"seed": unit.seed(self.seed)}
        return Rollout(
            messages=messages,
            files=files,
            prepare=None if task.setup is None else SetUpCommand(task.setup, self.setup_timeout_s),
            cwd=task.cwd,
            toolsets=self.toolsets_of(unit),
            tool_options=ToolOptions.of(self.tool_options),
            scoring=scoring,
            collect=self._artifacts(unit),
            image=task.container_image,
            profile=make_profile(task, self.backend_options.get("profiles") or {}),
            loop={
                **{name: getattr(self, name) for name in _LOOP},
                **{name: value for name in _LOOP if (value := getattr(task, name, None)) is not None},
                "sampling": {**seed, **self.sampling, **task.sampling},
            },
        )

    def _artifacts(self, unit: Unit) -> Artifacts | None:
        patterns = (*self.collect, *unit.task.collect)
        if not patterns:
            return None
        return Artifacts(patterns, self.out / artifact_directory(unit), limit_bytes=self.collect_limit_mb << 20)

    def make_pool(self, tasks: Sequence[Task] = ()) -> SandboxPool:
        """Return the pool, large enough for all workers at the same time, whichever of these prompts they work on.

        Args:
            tasks: The prompts, one for each sample.

        Raises:
            ConfigError: If the settings contradict each other or the backend.
        """
        options = {"disk_wait_s": _DISK_WAIT_S, **self.backend_options}
        for name in ("backend", "image"):
            if name in options:
                raise ConfigError(
                    f"{name} is a setting of the run: use BatchConfig({name}=…) instead of backend_options"
                )
        if self.slots_per_sandbox is not None:
            options["slots_per_sandbox"] = self.slots_per_sandbox
        backend = self.backend
        if not isinstance(backend, BackendConfig):
            config_class = config_type(backend)
            backend = config_class.of(
                {name: value for name, value in options.items() if name in config_class.model_fields}
            )
        if options.get("slots_per_sandbox") is None and self._can_share_containers(backend, options, tasks):
            options["slots_per_sandbox"] = _SHARED_CONTAINER_SLOTS
        slots = options.get("slots_per_sandbox") or backend.default_slots
        images = [task.container_image for task in tasks]
        sandbox_kinds = [(task.container_image, task.profile, task.network) for task in tasks]
        sandboxes = self.max_sandboxes or options.pop("max_sandboxes", None)
        if sandboxes is None and isinstance(slots, int):
            each = max(1, min(backend.sizes(backend.default_max_sandboxes, slots)))
            counts = Counter(sandbox_kinds).values() or [self.workers]
            sandboxes = min(self.workers, sum(-(-min(count, self.workers) // each) for count in counts))
        enough = "image" in type(backend).model_fields and images and all(images)
        image = self.image or (images[0] if enough else None)
        return SandboxPool(self.backend, image=image, max_sandboxes=sandboxes, **options)

    def _can_share_containers(self, backend: BackendConfig, options: dict[str, Any], tasks: Sequence[Task]) -> bool:
        """Return whether prompts share containers by default: on Docker, if every check is sealed.

        A sealed check resets the slot. A slot that is a whole container then gets a new container, which takes much
        longer than a new root in a shared one. Other checks may need ports of their own.
        """
        set_options = options.keys() | backend.model_fields_set
        whole = options.get("min_isolation") == "exclusive" or not _WHOLE_CONTAINER_OPTIONS.isdisjoint(set_options)
        places = {self._score_in(task) for task in tasks if task.check is not None}
        return backend.backend == "docker" and not whole and places == {"sealed"}

    def _score_in(self, task: Task) -> ScoreIn:
        return task.score_in or ("sealed" if task.keep is not None else self.score_in)
