"""The settings of an environment. They are flat, so that each one is a command-line flag."""

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
from hermes_agent.gateway import SequenceScope
from hermes_agent.turn import ParallelCalls, parse_parallel_calls
from hermes_exec import ConfigError, Limits, PoolConfig, SandboxPool, config_types
from hermes_exec.config import backend_sections, mask_settings, read_config, secret_fields
from hermes_exec.config.older_names import FIELDS, import_names
from hermes_exec.tools import ToolOptions, draw_toolsets, select

InferenceServer = Literal["auto", "openai", "vllm", "sglang", "tinker"]
logger = logging.getLogger(__name__)
_LISTS = ("enabled_toolsets", "disabled_toolsets")


class SandboxEnvConfig(BaseEnvConfig):  # type: ignore[misc]
    """The settings of a `SandboxAgentEnv`, in addition to those from atroposlib. Lists are comma-separated texts,
    mappings are JSON.

    Names that earlier environments used are accepted, and a warning names the current setting.
    """

    model_config = ConfigDict(extra="forbid", validate_default=False)

    needs_network: ClassVar[bool] = False
    """Whether the environment's tasks cannot be solved without a network."""
    uses_pool_image: ClassVar[bool] = True
    """Whether the environment uses slots with the pool's own image."""

    use_wandb: bool = Field(False, description="Whether to use wandb")
    group_size: int = Field(4, ge=1, description="Rollouts in a group")
    max_eval_workers: int = Field(16, ge=1, description="Maximum number of evaluation items at a time")
    max_token_length: int = Field(
        16_384,
        gt=0,
        description="Upper bound of token ids in an episode; the tool schemas take about 2,500",
    )
    worker_timeout: float = Field(7200.0, description="Time limit of a group in seconds; -1: no limit")
    min_items_sent_before_logging: int = Field(1, description="Groups to send before metrics are logged")

    backend: str = Field(
        "local", description="Backend of the pool: local, docker, ssh, singularity, …, or a name in pool_config"
    )
    image: str | None = Field(None, description="Image of the slots for items that do not name one")
    pool_config: str | None = Field(
        None, description="File with the pool configuration; settings given here take precedence"
    )
    backend_options: str = Field("", description="More options of SandboxPool, as a JSON object")
    slots_per_sandbox: int | None = Field(None, ge=1, description="Slots per sandbox")
    min_sandboxes: int = Field(0, ge=0, description="Sandboxes to keep running")
    max_sandboxes: int | None = Field(None, ge=1, description="Maximum number of sandboxes")
    network: bool | None = Field(
        None,
        description="Whether slots have a network (None: yes if they have their own network; no if they would share "
        "the host's network, as on local, ssh and singularity, unless the environment needs one)",
    )
    min_isolation: str | None = Field(
        None, description="Minimum isolation level: none, landlock, uid, namespaces, exclusive (None: landlock)"
    )
    cpus: float | None = Field(None, gt=0, description="CPUs of a sandbox")
    memory_mb: int | None = Field(None, gt=0, description="Memory of a sandbox, in MB")
    idle_timeout_s: float | None = Field(
        None, gt=0, description="Stop sandboxes that have been idle for this many seconds"
    )
    max_lifetime_s: float | None = Field(None, gt=0, description="Replace sandboxes after this many seconds")
    acquire_timeout_s: float = Field(300.0, gt=0, description="Seconds that a group waits for its slots")

    enabled_toolsets: str = Field("terminal,file", description="Toolsets of every group, separated by commas")
    disabled_toolsets: str = Field("", description="Toolsets to remove from enabled_toolsets, separated by commas")
    distribution: str | None = Field(
        None, description="Distribution that draws the toolsets of a group, instead of enabled_toolsets"
    )
    strict_toolsets: bool = Field(False, description="Refuse toolsets that have no available tool")
    toolset_seed: int = Field(0, description="Seed for drawing toolsets")
    system_prompt: str | None = Field(None, description="System message before the item's prompt")
    max_agent_turns: int = Field(30, ge=1, description="Maximum number of completions in an episode")
    parallel_calls: ParallelCalls = Field(
        "safe", description="Calls of one turn that run at a time: safe (consecutive reads), all, or a number"
    )
    max_tokens_per_turn: int | None = Field(
        None, ge=1, description="Maximum tokens of a completion (None: all remaining tokens)"
    )
    agent_temperature: float = Field(1.0, ge=0, description="Sampling temperature")
    sampling: str = Field("", description="More sampling parameters, as a JSON object")
    sequences: SequenceScope = Field(
        "main",
        description="Conversations of a program that are trained: main, root (all that begin with the first request), "
        "or all",
    )
    deadline_s: float | None = Field(None, gt=0, description="Time limit of an episode in seconds")
    terminal_timeout_s: float | None = Field(None, gt=0, description="Default time limit of a command in seconds")
    tool_call_parser: str = Field("hermes", description="Format in which the model writes tool calls")
    chat_template: str | None = Field(None, description="Chat template or path of its file (default: the tokenizer's)")
    inference_server: InferenceServer = Field("auto", description="auto (server_type decides) or tinker")
    request_timeout_s: int | None = Field(
        None,
        ge=1,
        description="Timeout of a request to an inference server in seconds (None: the server's own timeout)",
    )
    server_wait_s: float = Field(600.0, ge=0, description="Seconds to wait for inference servers that are down")
    logprobs: Literal["raw", "temperature", "processed"] | None = Field(
        None, description="Distribution whose log-probabilities the server returns (None: the server's default)"
    )
    send_without_logprobs: bool = Field(False, description="serve: send groups of a chat server to the trainer")

    on_reward_error: Literal["reroll", "zero", "stop"] = Field(
        "reroll",
        description="If the code of a reward raises: reroll the rollout, give it the reward 0, or stop the run",
    )
    fork_groups: bool = Field(
        False,
        description="Whether to set up a slot once for a group and run its rollouts in forks, which needs slots with "
        "checkpoints",
    )
    max_rerolls: int = Field(8, ge=0, description="Maximum number of rerolls in a group")
    eval_samples: int = Field(1, ge=1, description="Number of rollouts of each item of an evaluation")
    max_failed_groups: int = Field(8, ge=1, description="Number of consecutive failed groups that stops the run")

    dataset_name: str | None = Field(None, description="File, directory or name of the dataset")
    dataset_split: str = Field("train", description="Split of the dataset")
    prompt_field: str = Field("prompt", description="Field of a row that holds the prompt")

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
        """Return the settings with current names in place of older ones, and log each replacement."""
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
            raise ValueError(f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("is not a JSON object")
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
            raise ValueError(f"{', '.join(taken)} cannot be set in sampling")
        return text

    @field_serializer("backend_options")
    def _mask_secrets(self, text: str) -> str:
        """Mask the secrets, because the settings are sent to wandb and written next to the results."""
        options: dict[str, Any] = json.loads(text or "{}")
        # The secrets of all backends, because `pool_config` may configure a backend other than `backend`.
        fields = secret_fields(PoolConfig).union(*map(secret_fields, config_types().values()))
        return json.dumps(mask_settings(options, fields)) if options else text

    @model_validator(mode="after")
    def _check_names(self) -> SandboxEnvConfig:
        """Raise ValueError for an unknown parser, toolset or distribution."""
        get_parser(self.tool_call_parser)
        if not select(self.toolsets(0), strict=self.strict_toolsets).tools:
            raise ValueError(f"no tool of the toolsets {', '.join(self.toolsets(0)) or '(none)'} is available")
        return self

    def toolsets(self, group: int) -> tuple[str, ...]:
        """Return the toolsets of a group: drawn for the group's number if a distribution is set, else the configured
        ones.
        """
        if self.distribution is not None:
            return draw_toolsets(self.distribution, self.toolset_seed, group, strict=self.strict_toolsets).toolsets
        left_out = _split(self.disabled_toolsets)
        return tuple(name for name in _split(self.enabled_toolsets) if name not in left_out)

    @property
    def template_text(self) -> str | None:
        """The text of the chat template, which is read from its file if the setting is a path.

        Raises:
            ConfigError: If the file cannot be read.
        """
        template = self.chat_template
        if template is None or "{" in template:
            return template
        try:
            return Path(template).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"chat_template is neither a Jinja template nor a readable file: {error}") from error

    @property
    def backend_type(self) -> str:
        """The type of the pool's backend, also if `backend` is a name in the `pool_config` file."""
        entry = self._file_backends().get(self.backend)
        return str(entry.get("type", self.backend)) if isinstance(entry, Mapping) else self.backend

    @property
    def shares_host_network(self) -> bool:
        """Whether slots with a network use the network of their host, including its loopback."""
        shares = {"nomad": self._option("driver") == "singularity", "docker": self._option("network_mode") == "host"}
        return shares.get(self.backend_type, self.backend_type in ("local", "ssh", "singularity"))

    @property
    def slots_network(self) -> bool:
        """Whether slots have a network."""
        network = self._option("network") if self.network is None else self.network
        return bool(network) if network is not None else self.needs_network or not self.shares_host_network

    def _option(self, name: str) -> object:
        """Return an option of the pool or its backend, from `backend_options` or else from the `pool_config` file."""
        file = {} if self.pool_config is None else read_config(self.pool_config)
        entry = self._file_backends().get(self.backend)
        sources = [json.loads(self.backend_options or "{}"), entry, file, file.get("backend_options")]
        return next((source[name] for source in sources if isinstance(source, Mapping) and name in source), None)

    def _file_backends(self) -> dict[str, Any]:
        return {} if self.pool_config is None else backend_sections(read_config(self.pool_config))

    @property
    def pool_image(self) -> str | None:
        """The image of a slot if the item does not name one."""
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
        """The sampling parameters other than the temperature."""
        sampling: dict[str, Any] = json.loads(self.sampling or "{}")
        return sampling

    @property
    def sampling_parameters(self) -> dict[str, Any]:
        """The temperature and the other sampling parameters of every completion."""
        return {"temperature": self.agent_temperature, **self.further_sampling}

    def make_pool(self) -> SandboxPool:
        """Return the pool.

        Raises:
            ConfigError: If the settings contradict each other or the backend.
        """
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
