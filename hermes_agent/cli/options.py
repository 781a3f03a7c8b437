"""The options of commands that let a model work: which model, and how far an episode may go."""

from __future__ import annotations

from typing import Annotated

import typer

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
MaxTurns = Annotated[int, typer.Option("--max-turns", min=1, help="Completions of an episode.")]
Toolsets = Annotated[
    list[str] | None, typer.Option("--toolset", "-t", help="May be repeated (default: terminal, file).")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0, max=100, help="0 is greedy.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of one completion.")]
