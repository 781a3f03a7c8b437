"""The options of commands that let a model work: which model, and how far an episode may go."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from hermes_exec.errors import ConfigError

ModelName = Annotated[
    str, typer.Option("--model", "-m", envvar="HERMES_AGENT_MODEL", help="Name of the model, or `embedded`.")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", envvar="OPENAI_BASE_URL", help="Endpoint (default: OpenAI's), such as http://host:8000/v1."
    ),
]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key of the endpoint.", show_default=False)
]
Parser = Annotated[str | None, typer.Option("--parser", help="Format of tool calls in plain text, such as hermes.")]
TextTools = Annotated[
    bool, typer.Option("--text-tools", help="Describe tools in the prompt, for endpoints that know none.")
]
RequestTimeout = Annotated[
    float,
    typer.Option("--request-timeout", metavar="SECONDS", help="So long without a byte of an answer, and it is lost."),
]
Stream = Annotated[
    bool | None,
    typer.Option("--stream/--no-stream", help="Stream answers, or wait for all of each (default: of short ones)."),
]
MaxRetries = Annotated[
    int,
    typer.Option("--max-retries", min=0, help="How often a completion that was lost is asked for again (paid twice)."),
]
WaitOutage = Annotated[
    float,
    typer.Option("--wait-outage", metavar="SECONDS", min=0, help="How long an endpoint that is away is waited for."),
]
MaxTurns = Annotated[int, typer.Option("--max-turns", min=1, help="Completions of an episode.")]
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
Temperature = Annotated[float, typer.Option("--temperature", min=0, max=100, help="0 is greedy.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of one completion.")]
Sampling = Annotated[
    list[str] | None,
    typer.Option(
        "--sampling",
        metavar="NAME=VALUE",
        help="A further parameter of requests, its value as JSON or text: top_p=0.9, reasoning_effort=high, "
        """'provider={"order": ["x"]}'; may be repeated.""",
    ),
]
ParallelCallsOption = Annotated[
    str,
    typer.Option(
        "--parallel-calls",
        metavar="safe|all|N",
        help="Calls of one turn: `safe` runs only neighbouring reads side by side, `all` or a number all (at most N) "
        "at once, 1 one after another.",
    ),
]
MaxToolCalls = Annotated[int | None, typer.Option("--max-tool-calls", min=0, help="Tool calls of an episode.")]
Deadline = Annotated[float | None, typer.Option("--deadline", metavar="SECONDS", help="Longest time of an episode.")]
MaxTokensTotal = Annotated[
    int | None, typer.Option("--max-tokens-total", min=1, help="Tokens of an episode, prompts and completions.")
]
MaxCost = Annotated[float | None, typer.Option("--max-cost", help="What an episode may cost, as the provider says.")]


def parse_sampling(given: Iterable[str] | None) -> dict[str, Any]:
    """The parameters of `--sampling`. Raises ConfigError for one without a name or a value."""
    found: dict[str, Any] = {}
    for entry in given or ():
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--sampling takes NAME=VALUE, such as top_p=0.9, not {entry!r}")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found
