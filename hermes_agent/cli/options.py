"""The options of commands that let a model work: the model, and the bounds of an episode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_agent.models.prices import Prices

ModelName = Annotated[
    str, typer.Option("--model", "-m", envvar="HERMES_AGENT_MODEL", help="Name of the model, or `embedded`.")
]
BaseUrl = Annotated[
    list[str] | None,
    typer.Option(
        "--base-url",
        envvar="OPENAI_BASE_URL",
        help="Endpoint (default: OpenAI's), such as http://host:8000/v1. Repeatable: an episode stays on one.",
    ),
]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key of the endpoint.", show_default=False)
]
Parser = Annotated[str | None, typer.Option("--parser", help="Format of tool calls in plain text, such as hermes.")]
Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="prompt=X,completion=Y",
        help="Price of a million tokens, for an endpoint that reports no cost; also cached=, reasoning=.",
    ),
]
WaitOutage = Annotated[
    float,
    typer.Option("--wait-outage", metavar="SECONDS", min=0, help="How long to wait for an endpoint that is away."),
]
Toolsets = Annotated[
    list[str] | None, typer.Option("--toolset", "-t", help="May be repeated (default: terminal, file).")
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tool-option",
        metavar="NAME=VALUE",
        help="A field of ToolOptions: native_images=true for a model that sees, code_mode=kernel; may be repeated.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse toolsets that have no tool here.")]


@dataclass(frozen=True, repr=False)
class ModelOptions:
    """The options of a model, apart from its name."""

    base_url: BaseUrl = None
    api_key: ApiKey = "none"
    parser: Parser = None
    text_tools: Annotated[
        bool, typer.Option("--text-tools", help="Describe tools in the prompt, for endpoints without tools.")
    ] = False
    request_timeout_s: Annotated[
        float,
        typer.Option("--request-timeout", metavar="SECONDS", help="Longest time without a byte of an answer."),
    ] = 600.0
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream", help="Stream answers, or wait for whole answers (default: only short ones whole)."
        ),
    ] = None
    price: Price = None
    max_retries: Annotated[
        int,
        typer.Option(
            "--max-retries", min=0, help="How often to request a lost completion again (it may be paid for twice)."
        ),
    ] = 4
    wait_outage_s: WaitOutage = 30.0

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `create_model`.

        Raises:
            ConfigError: If the price is invalid.
        """
        settings = {**vars(self), "stream": "auto" if self.stream is None else self.stream}
        prices = parse_price(settings.pop("price"))
        return {**settings, "base_url": join_urls(self.base_url), "prices": prices}


@dataclass(frozen=True)
class LoopOptions:
    """The sampling of a model, and the bounds of an episode."""

    max_turns: Annotated[int, typer.Option("--max-turns", min=1, help="Completions of an episode.")] = 30
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=100, help="0 is greedy.")] = 1.0
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of one completion.")] = None
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            "--sampling",
            metavar="NAME=VALUE",
            help="A further parameter of requests, its value as JSON or text: top_p=0.9, reasoning_effort=high, "
            """'provider={"order": ["x"]}'; may be repeated.""",
        ),
    ] = None
    max_tool_calls: Annotated[int | None, typer.Option("--max-tool-calls", min=0, help="Tool calls of an episode.")] = (
        None
    )
    parallel_calls: Annotated[
        str,
        typer.Option(
            "--parallel-calls",
            metavar="safe|all|N",
            help="Calls of one turn: `safe` runs only neighbouring reads side by side, `all` or a number all (at most "
            "N) at once, 1 one after another.",
        ),
    ] = "safe"
    deadline_s: Annotated[
        float | None, typer.Option("--deadline", metavar="SECONDS", help="Longest time of an episode.")
    ] = None
    max_tokens_total: Annotated[
        int | None, typer.Option("--max-tokens-total", min=1, help="Tokens of an episode, prompts and completions.")
    ] = None
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="Highest cost of an episode, as reported or by --price.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `AgentLoop`.

        Raises:
            ConfigError: If a value is invalid.
        """
        from hermes_agent.turn import parse_parallel_calls

        sampling, parallel_calls = parse_sampling(self.sampling), parse_parallel_calls(self.parallel_calls)
        return {**vars(self), "sampling": sampling, "parallel_calls": parallel_calls}


def join_urls(urls: list[str] | None) -> str | tuple[str, ...] | None:
    """Return the URL of `--base-url`, or the URLs if there are several."""
    return tuple(urls) if urls and len(urls) > 1 else urls[0] if urls else None


def parse_price(text: str | None) -> Prices | None:
    """Return the prices of `--price`.

    Raises:
        ConfigError: If a price is invalid.
    """
    from hermes_agent.models.prices import Prices

    return None if text is None else Prices.parse(text)


def flatten_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for typer, with one option for each field of its parameters that are dataclasses."""
    hints = get_type_hints(command, include_extras=True)
    flat: list[Parameter] = []
    of: dict[str, list[str]] = {}
    for name, parameter in signature(command).parameters.items():
        if not is_dataclass(kind := hints[name]):
            flat.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))
            continue
        types = get_type_hints(kind, include_extras=True)
        of[name] = [field.name for field in fields(kind)]
        flat += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
            for field in fields(kind)
        ]

    @wraps(command)
    def run_command(**values: Any) -> None:
        options = {name: hints[name](**{field: values.pop(field) for field in names}) for name, names in of.items()}
        command(**values, **options)

    run_command.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run_command


def parse_sampling(entries: Iterable[str] | None) -> dict[str, Any]:
    """Return the parameters of `--sampling`.

    Raises:
        ConfigError: If an entry has no name or no value.
    """
    parameters: dict[str, Any] = {}
    for entry in entries or ():
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--sampling takes NAME=VALUE, such as top_p=0.9, not {entry!r}")
        try:
            parameters[name.strip()] = json.loads(value)
        except ValueError:
            parameters[name.strip()] = value
    return parameters
