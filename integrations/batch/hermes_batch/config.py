"""What a batch run is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from hermes_agent.models.base import Model
from hermes_agent.models.embedded.embedded import EMBEDDED_NAME
from hermes_agent.models.named import EMBEDDED, named_model
from hermes_exec.backends.registry import config_type
from hermes_exec.config import BackendConfig
from hermes_exec.errors import ConfigError
from hermes_exec.pool.pool import SandboxPool


class BatchConfig(BaseModel):
    """The settings of `run_batch`.

    `dataset` is a JSONL file (see `hermes_batch.dataset`), `out` the directory of the results. `model` is a name for
    `OpenAIModel` (with `base_url`, `api_key`, `parser`), "embedded", or a model object. `backend`, `image` and
    `backend_options` go to the pool; a prompt's own image wins over `image`. `workers` prompts are worked on at a
    time. `limit` takes only the first prompts. `seed` makes the sampling of prompt i start from seed + i, where the
    model has seeds. `max_tokens` bounds one completion, `temperature` and `sampling` go to the model. `overwrite`
    allows to replace the results of an earlier run in `out`; without it a directory that has some is a ConfigError.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)

    dataset: Path
    out: Path
    model: Any
    base_url: str | None = None
    api_key: SecretStr = SecretStr("none")
    parser: str | None = None
    backend: Any = "local"
    image: str | None = None
    backend_options: dict[str, Any] = Field(default_factory=dict)
    slots_per_sandbox: Annotated[int, Field(ge=1)] | None = None
    max_sandboxes: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[int, Field(ge=1)] = 4
    max_turns: Annotated[int, Field(ge=1)] = 30
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    toolsets: tuple[str, ...] = ("terminal", "file")
    system_prompt: str | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    limit: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    check_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    overwrite: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The same from a mapping. Raises ConfigError that names the settings that are wrong."""
        try:
            return cls(**values)
        except ValidationError as error:
            told = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
            raise ConfigError("; ".join(told)) from error

    @property
    def model_name(self) -> str:
        """How the model is called in the records."""
        if self.model == EMBEDDED:
            return EMBEDDED_NAME
        return (
            self.model if isinstance(self.model, str) else str(getattr(self.model, "model", type(self.model).__name__))
        )

    def make_model(self) -> Model:
        """The model. Raises ConfigError when what it needs is not installed."""
        if not isinstance(self.model, str):
            model: Model = self.model
            return model
        key = self.api_key.get_secret_value()
        return named_model(self.model, base_url=self.base_url, api_key=key, parser=self.parser)

    def make_pool(self, images: Sequence[str | None] = ()) -> SandboxPool:
        """The pool, large enough for all workers at the same time, for prompts with these images. Raises ConfigError
        for what cannot be.
        """
        options = {**self.backend_options}
        for name in ("backend", "image"):
            if name in options:
                raise ConfigError(
                    f"{name} is a setting of the run itself: BatchConfig({name}=…), not in backend_options"
                )
        if self.slots_per_sandbox is not None:
            options["slots_per_sandbox"] = self.slots_per_sandbox
        kind = type(self.backend) if isinstance(self.backend, BackendConfig) else config_type(self.backend)
        slots = options.get("slots_per_sandbox") or kind.default_slots
        boxes = self.max_sandboxes or options.pop("max_sandboxes", None)
        if boxes is None and isinstance(slots, int):
            boxes = -(-self.workers // max(1, slots))
        enough = "image" in kind.model_fields and images and all(images)
        image = self.image or (images[0] if enough else None)
        return SandboxPool(self.backend, image=image, max_sandboxes=boxes, **options)
