"""The settings of a dataset: its rows, the slots that they run in, and their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from hermes_agent import CommandCheck, Rollout, Scoring
from hermes_agent.scoring import Files, ScoreIn, Scorer
from hermes_batch.dataset import CheckTask, Extra, read_dataset
from hermes_batch.references import resolve_reference
from hermes_batch.rows.source import parse_dataset
from hermes_batch.scorers import FunctionScorer, count_parameters, load_scorer
from hermes_batch.selection import parse_shard, select_tasks
from hermes_batch.task import Task
from hermes_batch.task_checks import TaskChecks
from hermes_batch.task_slot import SetUpCommand, image_of_profile, make_profile
from hermes_exec import BackendConfig, ConfigError, SandboxPool, config_type
from hermes_exec.config import ConfigModel

_SELECTION = ("ids", "shuffle", "offset", "limit", "shard")
"""The settings that are arguments of `select_tasks`."""
_DISK_WAIT_S = 5.0
_SHARED_CONTAINER_SLOTS = 8
_WHOLE_CONTAINER_OPTIONS = frozenset(
    {"limits", "cpuset_cpus", "shm_size_mb", "slot_root", "user", "cap_drop", "runtime"}
)
"""Options that mean something else, or prevent isolation, if several slots share a container."""


class DatasetConfig(ConfigModel):
    """The settings that running a dataset and checking it have in common.

    `dataset` is a file of prompts, or `hf:PATH:SPLIT` (see `hermes_batch.dataset`). `columns` maps entries to the
    columns that have their values. `extra` decides about unknown entries ("refuse", or "metadata": keep them in the
    record). `ids`, `shuffle` (a seed), `offset`, `limit` and `shard` ("2/16") select prompts in this order (see
    `hermes_batch.selection.select_tasks`). A prompt's own entries take precedence over settings of the same name.

    `backend`, `image` and `backend_options` are for the pool; a prompt's own image takes precedence over `image`. On
    Docker `slots_per_sandbox` is 8 by default, unless `score_in` of a check is "slot" or "live", or an option is meant
    for whole containers.
    `workers` prompts are worked on at a time.

    `score_in` and `check_timeout_s` apply to the checks (see `hermes_agent.Scoring`), and `setup_timeout_s` to the
    prompts' set-up commands. `scorer` is a function that scores every episode in place of the checks (see
    `hermes_batch.scorers`), or its name ("file.py:name" or "package.module:name"), so that a run can be resumed without
    giving it again. `strict` refuses toolsets that have no available tool.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dataset: Path | str
    columns: dict[str, str] = Field(default_factory=dict)
    extra: Extra = "refuse"
    ids: tuple[str, ...] | None = None
    shuffle: int | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1)] | None = None
    shard: str | None = None
    backend: Any = "local"
    image: str | None = None
    backend_options: dict[str, Any] = Field(default_factory=dict)
    slots_per_sandbox: Annotated[int, Field(ge=1)] | None = None
    max_sandboxes: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[int, Field(ge=1)] = 4
    strict: bool = False
    check_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    setup_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    score_in: ScoreIn = "sealed"
    scorer: Any = None

    @field_validator("dataset")
    @classmethod
    def _parse_dataset(cls, dataset: Path | str) -> Path | str:
        source = parse_dataset(dataset)
        return source if isinstance(source, Path) else str(source)

    @field_validator("shard")
    @classmethod
    def _check_shard(cls, shard: str | None) -> str | None:
        if shard is not None:
            parse_shard(shard)
        return shard

    @field_validator("scorer")
    @classmethod
    def _check_scorer(cls, scorer: object) -> object:
        if scorer is None:
            return None
        count_parameters(load_scorer(scorer))
        return resolve_reference(scorer) if isinstance(scorer, str) else scorer

    def read_tasks(self) -> list[Task]:
        """Return the selected prompts of the dataset.

        Raises:
            ConfigError: If the dataset cannot be read, has errors, or has a prompt that cannot run with these settings,
                or if no prompt is selected.
        """
        tasks = read_dataset(self.dataset, self.extra, self.columns, self._make_check_of_tasks())
        return select_tasks(tasks, **{name: getattr(self, name) for name in _SELECTION})

    def _make_check_of_tasks(self) -> CheckTask:
        """Return the function that checks each prompt against these settings."""
        return TaskChecks(
            self.backend, self.image, self.backend_options, strict=self.strict, has_scorer=self.scorer is not None
        )

    def image_of(self, task: Task) -> str | None:
        """Return the image of a prompt's slot: its own, its profile's, or the run's. None if the backend has none."""
        profiles = self.backend_options.get("profiles") or {}
        own = task.container_image or image_of_profile(task.profile, profiles) or self.image
        return own or getattr(self.backend, "image", None)

    def make_slot_rollout(self, task: Task) -> Rollout:
        """Return the rollout of a prompt without the settings of its model: the slot, its set-up, and the score."""
        files: Files = {**({} if task.tree is None else {".": task.tree}), **task.files}
        return Rollout(
            messages=task.beginning,
            files=files,
            prepare=None if task.setup is None else SetUpCommand(task.setup, self.setup_timeout_s),
            cwd=task.cwd,
            scoring=self._make_scoring(task),
            image=task.container_image,
            profile=make_profile(task, self.backend_options.get("profiles") or {}),
        )

    def _make_scoring(self, task: Task) -> Scoring | None:
        timeout_s = task.check_timeout_s or self.check_timeout_s
        if self.scorer is not None:
            check: Scorer = FunctionScorer(load_scorer(self.scorer), task, timeout_s)
        elif task.check is not None:
            check = CommandCheck(task.check, timeout_s)
        else:
            return None
        return Scoring(check=check, files=task.check_files, score_in=self.choose_score_in(task), keep=task.keep)

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
        pool = SandboxPool(self.backend, image=image, max_sandboxes=sandboxes, **options)
        in_forks = [task for task in tasks if self.is_scored(task) and self.choose_score_in(task) == "fork"]
        for task in {(task.container_image, task.profile, task.network): task for task in in_forks}.values():
            self.check_checkpoints(pool, task)
        return pool

    def check_checkpoints(self, pool: SandboxPool, task: Task) -> None:
        """Raise ConfigError if the slots of a prompt can have no checkpoints."""
        profile = make_profile(task, self.backend_options.get("profiles") or {})
        pool.check_checkpoints(profile, task.container_image)

    def _can_share_containers(self, backend: BackendConfig, options: dict[str, Any], tasks: Sequence[Task]) -> bool:
        """Return whether prompts share containers by default: on Docker, unless a check runs in the "slot" or "live".

        Each prompt and each sealed check begins in a reset slot. A slot that is a whole container then gets a new
        container, which takes much longer than a new root in a shared one. Other checks may need ports of their own.
        """
        set_options = options.keys() | backend.model_fields_set
        whole = options.get("min_isolation") == "exclusive" or not _WHOLE_CONTAINER_OPTIONS.isdisjoint(set_options)
        places = {self.choose_score_in(task) for task in tasks if self.is_scored(task)}
        return backend.backend == "docker" and not whole and places <= {"sealed", "fork"}

    def is_scored(self, task: Task) -> bool:
        """Return whether the episodes of a prompt are scored: by the scorer, or by its check."""
        return self.scorer is not None or task.check is not None

    def choose_score_in(self, task: Task) -> ScoreIn:
        """Return the state in which the episodes of a prompt are scored."""
        return task.score_in or ("sealed" if task.keep is not None else self.score_in)
