"""Creates the model for a name and options of the command line or a batch run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hermes_agent.messages import Message
from hermes_agent.models.embedded.embedded import EmbeddedModel
from hermes_agent.models.openai import OpenAIModel
from hermes_agent.parsers import get_parser
from hermes_exec.errors import ConfigError

EMBEDDED = "embedded"
"""The name of the model that runs in this process: `EmbeddedModel`."""


def create_model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str = "none",
    parser: str | None = None,
    text_tools: bool = False,
    prefill: Sequence[Message] = (),
    request_timeout_s: float = 600.0,
    stream: bool | Literal["auto"] = "auto",
    max_retries: int = 4,
    wait_outage_s: float = 1800.0,
) -> EmbeddedModel | OpenAIModel:
    """Return an `EmbeddedModel` for the name "embedded", else an `OpenAIModel` with these options.

    The embedded model has no endpoint and writes its calls as `hermes`.

    Raises:
        ConfigError: If a package of the model is not installed, or an option is invalid.
    """
    if name != EMBEDDED:
        return OpenAIModel(
            name,
            base_url=base_url,
            api_key=api_key,
            parser=parser,
            text_tools=text_tools,
            prefill=prefill,
            timeout_s=request_timeout_s,
            stream=stream,
            max_retries=max_retries,
            wait_outage_s=wait_outage_s,
        )
    if parser is not None and get_parser(parser) is not get_parser("hermes"):
        raise ConfigError(f"the embedded model writes its calls in the format 'hermes', not {parser!r}")
    if prefill:
        raise ConfigError("the embedded model has examples of its own, and takes no prefill")
    return EmbeddedModel()
