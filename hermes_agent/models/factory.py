"""Creates the model for a name and options of the command line or a batch run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hermes_agent.messages import Message
from hermes_agent.models.embedded.embedded import EmbeddedModel
from hermes_agent.models.openai import OpenAIModel
from hermes_agent.models.prices import Prices
from hermes_agent.models.replicated import ReplicatedModel
from hermes_agent.parsers import get_parser
from hermes_exec.errors import ConfigError

EMBEDDED = "embedded"
"""The name of the model that runs in this process: `EmbeddedModel`."""


def create_model(
    name: str,
    *,
    base_url: str | Sequence[str] | None = None,
    api_key: str = "none",
    parser: str | None = None,
    text_tools: bool = False,
    system: str | None = None,
    prefill: Sequence[Message] = (),
    prices: Prices | None = None,
    request_timeout_s: float = 600.0,
    stream: bool | Literal["auto"] = "auto",
    max_retries: int = 4,
    wait_outage_s: float = 1800.0,
) -> EmbeddedModel | OpenAIModel | ReplicatedModel:
    """Return an `EmbeddedModel` for the name "embedded", else an `OpenAIModel` with these options, or with several URLs
    a `ReplicatedModel`.

    The embedded model has no endpoint and writes its calls as `hermes`.

    Raises:
        ConfigError: If a package of the model is not installed, or an option is invalid.
    """
    if name != EMBEDDED:
        urls = [base_url] if base_url is None or isinstance(base_url, str) else base_url
        models = [
            OpenAIModel(
                name,
                base_url=url,
                api_key=api_key,
                parser=parser,
                text_tools=text_tools,
                system=system,
                prefill=prefill,
                prices=prices,
                timeout_s=request_timeout_s,
                stream=stream,
                max_retries=max_retries,
                wait_outage_s=wait_outage_s,
            )
            for url in urls or [None]
        ]
        return models[0] if len(models) == 1 else ReplicatedModel(models)
    if parser is not None and get_parser(parser) is not get_parser("hermes"):
        raise ConfigError(f"the embedded model writes its calls in the format 'hermes', not {parser!r}")
    if system is not None or prefill:
        raise ConfigError("the embedded model has examples of its own, and takes no ephemeral system prompt or prefill")
    if prices is not None:
        raise ConfigError("the embedded model costs nothing, and takes no prices")
    return EmbeddedModel()
