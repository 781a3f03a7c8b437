"""The configuration of a batch run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from hermes_agent import (
    Artifacts,
    Context,
    Hooks,
    Message,
    Model,
    Prices,
    Rollout,
    SessionModel,
    ShortenOldResults,
    SummariseOldTurns,
)
from hermes_agent.gateway import Gateway
from hermes_agent.models.embedded.embedded import EMBEDDED_NAME
from hermes_agent.models.factory import EMBEDDED, create_model
from hermes_agent.scoring import check_inside
from hermes_agent.turn import ParallelCalls, parse_parallel_calls
from hermes_batch.artifacts import artifact_directory
from hermes_batch.budget import RunBudget
from hermes_batch.dataset import CheckTask
from hermes_batch.dataset_config import DatasetConfig
from hermes_batch.program import EXCLUDED_SETTINGS, check_task, parse_program
from hermes_batch.prompt_messages import check_prefill
from hermes_batch.references import resolve_reference
from hermes_batch.scorers import load_tools
from hermes_batch.set_ups import find_shared_groups
from hermes_batch.task import Task
from hermes_batch.units import Unit
from hermes_exec import ConfigError, SandboxPool
from hermes_exec.tools import Draw, ToolOptions, draw_toolsets, schemas_for, select

_LOOP = (
    *("max_turns", "max_tool_calls", "parallel_calls", "temperature", "max_tokens"),
    *("deadline_s", "max_tokens_total", "max_cost", "max_tool_seconds"),
)
"""The settings that are arguments of `AgentLoop`."""


_CHARS_PER_TOKEN = 4


class BatchConfig(DatasetConfig):
    """The settings of `run_batch`, in addition to the settings of the dataset (`DatasetConfig`).

    `out` is the directory of the results.

    `model` is a model name for `OpenAIModel` (with `base_url`, `api_key`, `parser`, `text_tools`, `stream`,
    `max_retries`, `wait_outage_s`, and `request_timeout_s` as its `timeout_s`), "embedded", or a model object. A
    request waits up to `wait_outage_s` seconds for an endpoint that is down. Then its prompt returns to the queue, and
    the run keeps waiting (`on_outage="wait"`) or stops and leaves the rest undone ("stop"). A run whose endpoint has
    never answered stops in either case. With several `base_url`, each episode stays on one (`ReplicatedModel`).
    `prices` (fields of `Prices`) are for an endpoint that reports no cost. `ephemeral_system_prompt` and `prefill`
    (messages before the prompt) are sent with each request, and are in no record.

    With `context` ("shorten" or "summarise"), requests stay within about `context_tokens` tokens (four characters
    each): see `ShortenOldResults` and `SummariseOldTurns`. The records have all messages.

    When `budget_cost`, `budget_tokens` or `budget_time_s` are used up, the run ends and can be resumed. They count all
    invocations of the run.
    A prompt whose slot failed is retried up to `retries` times before its record
    is written.

    Each prompt gets `samples` episodes, or fewer with `until_solved`: no more begin as soon as that many are solved.
    With a `seed`, each sample has a seed that follows from it, the prompt's
    content and the number of the sample, if the model supports seeds. `max_tokens` limits one completion;
    `temperature` and `sampling` are passed to the model. `max_turns`, `max_tool_calls`, `deadline_s`,
    `max_tokens_total`, `max_cost` and `max_tool_seconds` limit an episode, and `parallel_calls` sets which calls of a
    turn run at the same time ("safe", "all" or a number); see `AgentLoop`.

    `tools` are names of single tools and host tools made with `@tool`, and `hooks` are `hermes_agent.Hooks`. A tool may
    be named by a text ("file.py:name" or "package.module:name"), so that a run can be resumed without giving it again.

    With a `program`, a harness works on each prompt in its slot in place of the agent loop: the name of a recipe
    (`hermes_agent.gateway.harness`), perhaps with further arguments, or a command as a text for `shlex.split` or a
    list, with the prompt in place of `{task}`. Its budgets are `max_turns` (answers of the model), `max_cost` and
    `deadline_s`. The other settings of the agent loop are refused (`hermes_batch.program.EXCLUDED_SETTINGS`), and so
    are the entries `system` and `toolsets` of prompts, and `messages` other than one user message.

    With `fork_samples`, the samples of a prompt with a `setup` or `tree` share this set-up where slots can be forked
    (`hermes_agent.SharedSetUp`): they come one after the other, unless `until_solved` is set.

    With a `distribution`, the toolsets of each sample are drawn from it instead of `toolsets`, with `seed` (default 0),
    the prompt's content and the sample's number. `tool_options` are fields of `ToolOptions`. `collect` are paths or
    patterns of files of the working directory, which are copied to `artifacts/` at the end of each episode, besides
    those of the prompt: at most `collect_limit_mb` MiB and 1,000 files of each episode. `overwrite` replaces the
    results of an earlier run in `out`; without it, existing results raise ConfigError.
    """

    out: Path
    model: Any
    base_url: str | tuple[str, ...] | None = None
    api_key: SecretStr = SecretStr("none")
    parser: str | None = None
    text_tools: bool = False
    ephemeral_system_prompt: str | None = None
    prefill: tuple[dict[str, Any], ...] = ()
    prices: dict[str, float] | None = None
    request_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    stream: bool | Literal["auto"] = "auto"
    max_retries: Annotated[int, Field(ge=0)] = 4
    wait_outage_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1800.0
    on_outage: Literal["wait", "stop"] = "wait"
    budget_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    budget_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retries: Annotated[int, Field(ge=0)] = 2
    program: str | tuple[str, ...] | None = None
    max_turns: Annotated[int, Field(ge=1)] = 30
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    parallel_calls: ParallelCalls = "safe"
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tokens_total: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tool_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    context: Literal["shorten", "summarise"] | None = None
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    toolsets: tuple[str, ...] = ("terminal", "file")
    tools: tuple[Any, ...] = ()
    hooks: Any = None
    distribution: str | None = None
    tool_options: dict[str, Any] = Field(default_factory=dict)
    system_prompt: str | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    samples: Annotated[int, Field(ge=1)] = 1
    until_solved: Annotated[int, Field(ge=1)] | None = None
    fork_samples: bool = True
    seed: int | None = None
    collect: tuple[str, ...] = ()
    collect_limit_mb: Annotated[int, Field(ge=1)] = 256
    overwrite: bool = False

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

    @model_validator(mode="after")
    def _check_until_solved(self) -> Self:
        if self.until_solved is not None and self.until_solved > self.samples:
            raise ValueError(
                f"until_solved: {self.until_solved} solved samples of a prompt need at least as many samples; samples "
                f"is {self.samples}"
            )
        return self

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if self.program is None:
            return self
        parse_program(self.program)
        defaults = {
            name: field.get_default(call_default_factory=True) for name, field in type(self).model_fields.items()
        }
        if others := [name for name in EXCLUDED_SETTINGS if getattr(self, name) != defaults[name]]:
            raise ValueError(f"{', '.join(others)}: for the agent loop, whose place the program takes")
        return self

    @field_validator("tools")
    @classmethod
    def _check_own_tools(cls, tools: tuple[object, ...]) -> tuple[object, ...]:
        if tools:
            schemas_for((), tools=load_tools(tools))
        return tuple(resolve_reference(tool) if isinstance(tool, str) and ":" in tool else tool for tool in tools)

    @field_validator("hooks")
    @classmethod
    def _check_hooks(cls, hooks: object) -> object:
        if hooks is not None and not isinstance(hooks, Hooks):
            raise ValueError(f"give hermes_agent.Hooks, not {type(hooks).__name__}")
        return hooks

    @field_validator("tool_options")
    @classmethod
    def _check_tools(cls, values: dict[str, Any]) -> dict[str, Any]:
        ToolOptions.of(values)
        return values

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if (self.context is None) != (self.context_tokens is None):
            raise ValueError(
                'context ("shorten" or "summarise") and context_tokens (the longest request) belong together'
            )
        return self

    @field_validator("prices", mode="before")
    @classmethod
    def _check_prices(cls, prices: object) -> object:
        if isinstance(prices, dict):
            prices = Prices.of(prices)
        if isinstance(prices, Prices):
            return {name: price for name, price in vars(prices).items() if price is not None}
        return prices

    @field_validator("prefill")
    @classmethod
    def _check_prefill(cls, messages: tuple[dict[str, Any], ...]) -> tuple[Message, ...]:
        return tuple(check_prefill(messages))

    @property
    def budget(self) -> RunBudget:
        """The bounds of the run."""
        return RunBudget(self.budget_cost, self.budget_tokens, self.budget_time_s, self.prices is not None)

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
            for name in ("ephemeral_system_prompt", "prefill", "prices"):
                if getattr(self, name):
                    raise ConfigError(f"{name} is for a model that is given by its name; set it in the model object")
            model: Model | SessionModel = self.model
            return model
        key = self.api_key.get_secret_value()
        return create_model(
            self.model,
            base_url=self.base_url,
            api_key=key,
            parser=self.parser,
            text_tools=self.text_tools,
            system=self.ephemeral_system_prompt,
            prefill=self.prefill,
            prices=None if self.prices is None else Prices(**self.prices),
            request_timeout_s=self.request_timeout_s,
            stream=self.stream,
            max_retries=self.max_retries,
            wait_outage_s=self.wait_outage_s,
        )

    def toolsets_of(self, unit: Unit) -> tuple[str, ...]:
        """Return the toolsets of a sample: drawn for it, or the run's. A program has none.

        Raises:
            ConfigError: If a toolset is unknown.
        """
        if self.program is not None:
            return ()
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
        if self.program is not None:
            return ()
        if self.distribution is None:
            return select(self.toolsets).unavailable
        drawn = (self._draw(self.distribution, unit).dropped for unit in units)
        return tuple(dict.fromkeys(name for dropped in drawn for name in dropped))

    def _draw(self, distribution: str, unit: Unit) -> Draw:
        return draw_toolsets(distribution, self.seed or 0, unit.task.group, unit.sample, strict=self.strict)

    def find_shared_groups(self, units: Sequence[Unit], pool: SandboxPool) -> frozenset[str]:
        """Return the groups whose samples share a set-up."""
        if not self.fork_samples or self.until_solved is not None:
            return frozenset()
        return find_shared_groups(units, partial(self.check_checkpoints, pool))

    def make_rollout(self, unit: Unit) -> Rollout:
        """Return the rollout of a sample of a prompt."""
        task = unit.task
        collect = self._artifacts(unit)
        if self.program is not None:
            return replace(self.make_slot_rollout(task), collect=collect, **self._program_options(self.program, unit))
        messages = task.beginning
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        return replace(
            self.make_slot_rollout(task),
            messages=messages,
            toolsets=self.toolsets_of(unit),
            tools=load_tools(self.tools) or None,
            tool_options=ToolOptions.of(self.tool_options),
            collect=collect,
            loop={
                **{name: getattr(self, name) for name in _LOOP},
                **{name: value for name in _LOOP if (value := getattr(task, name, None)) is not None},
                "sampling": self._sampling(unit),
                "hooks": self.hooks,
                "context": self._make_context(),
            },
        )

    def _program_options(self, program: str | tuple[str, ...], unit: Unit) -> dict[str, Any]:
        task = unit.task
        sampling = {"temperature": self.temperature, "max_tokens": self.max_tokens, **self._sampling(unit)}
        gateway = Gateway(
            max_requests=task.max_turns or self.max_turns,
            max_cost=self.max_cost,
            sampling={name: value for name, value in sampling.items() if value is not None},
        )
        return {
            "program": parse_program(program),
            "gateway": gateway,
            "deadline_s": task.deadline_s or self.deadline_s,
        }

    def _sampling(self, unit: Unit) -> dict[str, Any]:
        seed = {} if self.seed is None else {"seed": unit.seed(self.seed)}
        return {**seed, **self.sampling, **unit.task.sampling}

    def _make_check_of_tasks(self) -> CheckTask:
        check_settings = super()._make_check_of_tasks()
        if self.program is None:
            return check_settings

        def check(task: Task) -> None:
            check_settings(task)
            check_task(task)

        return check

    def _make_context(self) -> Context | SummariseOldTurns | None:
        if self.context_tokens is None:
            return None
        chars = self.context_tokens * _CHARS_PER_TOKEN
        return SummariseOldTurns(chars) if self.context == "summarise" else ShortenOldResults(chars)

    def _artifacts(self, unit: Unit) -> Artifacts | None:
        patterns = (*self.collect, *unit.task.collect)
        if not patterns:
            return None
        return Artifacts(patterns, self.out / artifact_directory(unit), limit_bytes=self.collect_limit_mb << 20)
