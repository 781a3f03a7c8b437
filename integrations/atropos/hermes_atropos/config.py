"""The settings of an environment: flat, so that each is a flag of the command line."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from atroposlib.envs.base import BaseEnvConfig
from pydantic import ConfigDict, Field, field_serializer, field_validator, model_validator

from hermes_agent import get_parser
from hermes_agent.turn import ParallelCalls, parse_parallel_calls
from hermes_exec import ConfigError, Limits, PoolConfig, SandboxPool, config_types
from hermes_exec.config import backend_sections, mask_settings, read_config, secret_fields
from hermes_exec.config.older_names import FIELDS, import_names
from hermes_exec.tools import ToolOptions, draw_toolsets, select

InferenceServer = Literal["auto", "openai", "vllm", "sglang", "tinker"]
logger = logging.getLogger(__name__)
_LISTS = ("enabled_toolsets", "disabled_toolsets")


class SandboxEnvConfig(BaseEnvConfig):  # type: ignore[misc]
    """The settings of a `SandboxAgentEnv`, beside those of atroposlib. Lists are texts with commas, mappings JSON.

    What older environments called otherwise is read, with a note, as what it became.
    """

    model_config = ConfigDict(extra="forbid", validate_default=False)

    needs_network: ClassVar[bool] = False
    """Whether the environment's tasks cannot be done without a network."""
    uses_pool_image: ClassVar[bool] = True
    """Whether slots of the pool's own image are used."""

    use_wandb: bool = Field(False, description="Whether to use wandb")
    group_size: int = Field(4, ge=1, description="Rollouts of a group")
    max_eval_workers: int = Field(16, ge=1, description="Items of an evaluation that are worked on at once, at most")
    max_token_length: int = Field(
        16_384,
        gt=0,
        description="Token ids of an episode stay below it; the schemas of the tools take about 2,500",
    )
    worker_timeout: float = Field(7200.0, description="Seconds of a group at most; -1: no limit")
    min_items_sent_before_logging: int = Field(1, description="Groups sent before metrics are logged")

    backend: str = Field(
        "local", description="Backend of the pool: local, docker, ssh, singularity, …, or a name in pool_config"
    )
    image: str | None = Field(None, description="Image of the slots, where an item names none")
    pool_config: str | None = Field(None, description="File with the pool's configuration; the settings here win")
    backend_options: str = Field("", description="Further options of SandboxPool, as a JSON object")
    slots_per_sandbox: int | None = Field(None, ge=1, description="Slots in a sandbox")
    min_sandboxes: int = Field(0, ge=0, description="Sandboxes that are always there")
    max_sandboxes: int | None = Field(None, ge=1, description="Sandboxes at most")
    network: bool | None = Field(
        None,
        description="Whether slots have a network (None: yes where it is their own; no where it would be that of their "
        "host, as on local, ssh and singularity, unless the environment needs one)",
    )
    min_isolation: str = Field("none", description="Least isolation: none, uid, namespaces, sandbox")
    cpus: float | None = Field(None, gt=0, description="Processors of a sandbox")
    memory_mb: int | None = Field(None, gt=0, description="Memory of a sandbox, in MB")
    idle_timeout_s: float | None = Field(None, gt=0, description="Sandboxes that lend nothing for so long end")
    max_lifetime_s: float | None = Field(None, gt=0, description="Sandboxes are replaced after so long")
    acquire_timeout_s: float = Field(300.0, gt=0, description="How long a group waits for its slots")

    enabled_toolsets: str = Field("terminal,file", description="Toolsets of every group, with commas")
    disabled_toolsets: str = Field("", description="Toolsets that are left out of enabled_toolsets, with commas")
    distribution: str | None = Field(None, description="Draws the toolsets of each group, instead of enabled_toolsets")
    strict_toolsets: bool = Field(False, description="Refuse toolsets that have no tool here")
    toolset_seed: int = Field(0, description="Seed of the draws")
    system_prompt: str | None = Field(None, description="Goes before the item's prompt")
    max_agent_turns: int = Field(30, ge=1, description="Completions of an episode at most")
    parallel_calls: ParallelCalls = Field(
        "safe", description="Calls of one turn: safe (neighbouring reads side by side), all at once, or at most so many"
    )
    max_tokens_per_turn: int | None = Field(None, ge=1, description="Tokens of a completion (None: what is left)")
    agent_temperature: float = Field(1.0, ge=0, description="Sampling temperature")
    sampling: str = Field("", description="Further sampling parameters, as a JSON object")
    deadline_s: float | None = Field(None, gt=0, description="Seconds of an episode at most")
    terminal_timeout_s: float | None = Field(None, gt=0, description="Seconds of a command that names none")
    tool_call_parser: str = Field("hermes", description="Format in which the model writes tool calls")
    chat_template: str | None = Field(None, description="Chat template, or the file of one (default: the tokenizer's)")
    inference_server: InferenceServer = Field("auto", description="auto (as server_type says), or tinker")
    request_timeout_s: int | None = Field(
        None, ge=1, description="Seconds of one request to an inference server (None: the server's own timeout)"
    )
    server_wait_s: float = Field(600.0, ge=0, description="How long inference servers that are away are waited for")
    logprobs: Literal["raw", "temperature", "processed"] | None = Field(
        None, description="Of which distribution the server gives log-probabilities (None: as it starts by itself)"
    )
    send_without_logprobs: bool = Field(False, description="serve: send groups of a chat server to the trainer")

    max_rerolls: int = Field(8, ge=0, description="Rollouts of a group that are rolled again, at most")
    max_failed_groups: int = Field(8, ge=1, description="So many groups in a row that cannot be filled end the run")

    dataset_name: str | None = Field(None, description="File, directory, or name of the dataset")
    dataset_split: str = Field("train", description="Split of the dataset")
    prompt_field: str = Field("prompt", description="Field of a row that is the prompt")

    @model_validator(mode="before")
    @classmethod
    def _accept_older_names(cls, values: object) -> object:
        if not isinstance(values, Mapping):
            return values
        joined = {
            name: ",".join(value) if name in _LISTS and isinstance(value, list | tuple) else value
            for name, value in values.items()
        }
        for name in ("sampling", "backend_options", "extra_body"):
            if isinstance(joined.get(name), Mapping):
                joined[name] = json.dumps(joined[name])
        for name in _LISTS:
            if joined.get(name) is None:
                joined.pop(name, None)
        return cls._translate_older_names(joined) if FIELDS & joined.keys() else joined

    @classmethod
    def _translate_older_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The settings with those of older names in the place of what they became; each is told in the log."""
        translation = import_names({name: values.pop(name) for name in FIELDS & values.keys()}, values.get("backend"))
        for name, option in translation.became.items():
            last = option.rpartition(".")[2]
            logger.warning("%s is now %s%s", name, last, "" if last in cls.model_fields else ", in backend_options")
        for note in translation.left_out:
            logger.warning("%s", note)
        options = translation.options
        options |= {**options.pop("environment", {}), **options.pop("limits", {})}
        own = {name: options.pop(name) for name in cls.model_fields.keys() & options.keys()}
        if options:
            own["backend_options"] = json.dumps({**json.loads(values.get("backend_options") or "{}"), **options})
        return {**values, **own}

    @field_validator("sampling", "backend_options")
    @classmethod
    def _check_object(cls, text: str) -> str:
        try:
            value = json.loads(text or "{}")
        except ValueError as error:
            raise ValueError(f"is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("is no JSON object")
        return text

    @field_validator("parallel_calls", mode="before")
    @classmethod
    def _parse_calls(cls, value: object) -> ParallelCalls:
        return parse_parallel_calls(value)

    @field_validator("sampling")
    @classmethod
    def _check_sampling(cls, text: str) -> str:
        own = {"n", "model", "messages", "prompt", "input_ids", "max_tokens", "tools", "stream"}
        taken = sorted(own & json.loads(text or "{}").keys())
        if taken:
            raise ValueError(f"{', '.join(taken)} is not for sampling")
        return text

    @field_serializer("backend_options")
    def _mask_secrets(self, text: str) -> str:
        """What is told to wandb and written beside results."""
        options: dict[str, Any] = json.loads(text or "{}")
        # Those of any backend: `pool_config` may be about another one than `backend`.
        fields = secret_fields(PoolConfig).union(*map(secret_fields, config_types().values()))
        return json.dumps(mask_settings(options, fields)) if options else text

    @model_validator(mode="after")
    def _check_names(self) -> SandboxEnvConfig:
        """Raise ValueError for a parser, a toolset or a distribution that there is not."""
        get_parser(self.tool_call_parser)
        if not select(self.toolsets(0), strict=self.strict_toolsets).tools:
            raise ValueError(f"no tool of the toolsets {', '.join(self.toolsets(0)) or '(none)'} is available")
        return self

    def toolsets(self, group: int) -> tuple[str, ...]:
        """The toolsets of a group: drawn for its number, or those of the settings."""
        if self.distribution is not None:
            return draw_toolsets(self.distribution, self.toolset_seed, group, strict=self.strict_toolsets).toolsets
        left_out = _split(self.disabled_toolsets)
        return tuple(name for name in _split(self.enabled_toolsets) if name not in left_out)

    @property
    def template_text(self) -> str | None:
        """The chat template, read from its file where it is one. Raises ConfigError."""
        template = self.chat_template
        if template is None or "{" in template:
            return template
        try:
            return Path(template).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"chat_template is no Jinja text, and cannot be read as a file: {error}") from error

    @property
    def backend_type(self) -> str:
        """The type of the pool's backend, also where `backend` is a name in the file of `pool_config`."""
        entry = self._file_backends().get(self.backend)
        return str(entry.get("type", self.backend)) if isinstance(entry, Mapping) else self.backend

    @property
    def shares_host_network(self) -> bool:
        """Whether slots with a network have that of their host, its loopback included."""
        shares = {"nomad": self._option("driver") == "singularity", "docker": self._option("network_mode") == "host"}
        return shares.get(self.backend_type, self.backend_type in ("local", "ssh", "singularity"))

    @property
    def slots_network(self) -> bool:
        """Whether slots have a network."""
        network = self._option("network") if self.network is None else self.network
        return bool(network) if network is not None else self.needs_network or not self.shares_host_network

    def _option(self, name: str) -> object:
        """An option of the pool or its backend: of `backend_options`, else of the file of `pool_config`."""
        file = {} if self.pool_config is None else read_config(self.pool_config)
        entry = self._file_backends().get(self.backend)
        sources = [json.loads(self.backend_options or "{}"), entry, file, file.get("backend_options")]
        return next((source[name] for source in sources if isinstance(source, Mapping) and name in source), None)

    def _file_backends(self) -> dict[str, Any]:
        return {} if self.pool_config is None else backend_sections(read_config(self.pool_config))

    @property
    def pool_image(self) -> str | None:
        """The image of slots whose item names none."""
        return self.image

    @property
    def tool_options(self) -> ToolOptions:
        """The limits of the tools."""
        default, timeout_s = ToolOptions(), self.terminal_timeout_s
        if timeout_s is None:
            return default
        most = max(default.terminal_max_timeout_s, math.ceil(timeout_s))
        return replace(default, terminal_timeout_s=math.ceil(timeout_s), terminal_max_timeout_s=most)

    @property
    def further_sampling(self) -> dict[str, Any]:
        """Sampling parameters beside the temperature."""
        sampling: dict[str, Any] = json.loads(self.sampling or "{}")
        return sampling

    @property
    def sampling_parameters(self) -> dict[str, Any]:
        """Temperature and further parameters of every completion."""
        return {"temperature": self.agent_temperature, **self.further_sampling}

    def make_pool(self) -> SandboxPool:
        """The pool. Raises ConfigError for what cannot be."""
        options: dict[str, Any] = json.loads(self.backend_options or "{}")
        settings = {
            "slots_per_sandbox": self.slots_per_sandbox,
            "max_sandboxes": self.max_sandboxes,
            "idle_timeout_s": self.idle_timeout_s,
            "max_lifetime_s": self.max_lifetime_s,
        }
        options |= {name: value for name, value in settings.items() if value is not None}
        options["network"] = self.slots_network
        if self.pool_config is not None:
            if self.pool_image is not None:
                options["image"] = self.pool_image
            name = self.backend if self.backend in self._file_backends() else None
            return SandboxPool.from_config(self.pool_config, backend=name, **options)
        if self.cpus is not None or self.memory_mb is not None:
            options["limits"] = Limits(cpus=self.cpus, memory_mb=self.memory_mb)
        return SandboxPool(
            self.backend,
            image=self.pool_image,
            min_sandboxes=self.min_sandboxes,
            min_isolation=self.min_isolation,  # type: ignore[arg-type]
            acquire_timeout_s=self.acquire_timeout_s,
            **options,
        )


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
