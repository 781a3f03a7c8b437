"""`hermes-exec agent`: one task, one slot, one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_agent.cli.options import ApiKey, BaseUrl, MaxTokens, MaxTurns, ModelName, Parser, Temperature, Toolsets
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, stderr
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, TraceTo, make_pool
from hermes_exec.errors import ConfigError, ErrorCause

if TYPE_CHECKING:
    from rich.text import Text

    from hermes_agent.episode import Episode
    from hermes_agent.messages import Message
    from hermes_agent.models import Model
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.tools import Notice, Toolbox, ToolResult

app = typer.Typer(invoke_without_command=True, subcommand_metavar="")
_SHOWN = 400
_CODES = {"infra": exits.INFRA, "model_error": exits.INFRA, "answered": exits.OK}


@app.callback(
    context_settings={"allow_interspersed_args": True},
    epilog='Example: hermes-exec agent "Count the lines of all Python files" --put ./src --model qwen3 '
    "--base-url http://localhost:8000/v1",
)
def agent(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What the model is asked to do.")],
    model: ModelName,
    base_url: BaseUrl = None,
    api_key: ApiKey = "none",
    parser: Parser = None,
    backend: Backend = None,
    image: Image = None,
    put: Annotated[
        list[Path] | None,
        typer.Option("--put", exists=True, help="File or directory to put into the workspace; may be repeated."),
    ] = None,
    max_turns: MaxTurns = 30,
    toolset: Toolsets = None,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    trace: TraceTo = None,
    as_json: AsJson = False,
) -> None:
    """Let a model work on one task in an isolated slot, show its tool calls on stderr and print its answer.

    Exit codes: 0 for an answer, 1 when the model ran into a limit (turns, tokens, context), 2 usage or configuration,
    also where the endpoint refuses key or model, 3 when the model's service or the slot failed, 130 interrupted.
    """
    from hermes_agent.models.named import named_model
    from hermes_exec.tools import select

    if not task.strip():
        raise ConfigError("the task is empty")
    places = {path.resolve().name: path for path in put or ()}
    if len(places) < len(put or ()):
        raise ConfigError("two files of --put have the same name, and would be one in the workspace")
    select(toolset or ())
    pool = make_pool(backend, image, config, profile, option, trace=trace)
    made = named_model(model, base_url=base_url, api_key=api_key, parser=parser)
    limits = {"max_turns": max_turns, "temperature": temperature, "max_tokens": max_tokens}
    raise typer.Exit(run_async(lambda: _run(pool, made, task, places, toolset, limits, as_json)))


async def _run(
    pool: SandboxPool,
    model: Model,
    task: str,
    put: Mapping[str, Path],
    toolsets: Sequence[str] | None,
    limits: Mapping[str, Any],
    as_json: bool,
) -> int:
    from hermes_agent.loop import AgentLoop
    from hermes_exec.tools import Toolbox

    async with pool, pool.slot() as slot:
        for name, path in put.items():
            await slot.files.upload(path, name)
        tools = _Shown(Toolbox(slot, toolsets))
        messages: list[Message] = [{"role": "user", "content": task}]
        episode = await AgentLoop(model, tools, **limits).run(messages)
    if as_json:
        emit_json({**_facts(episode), "messages": episode.messages})
    else:
        _print(episode)
    if episode.finish == "model_error" and episode.cause is ErrorCause.CONFIG:
        return exits.USAGE
    return _CODES.get(episode.finish, exits.FAILED)


class _Shown:
    """A toolbox that shows each call and the beginning of its result on stderr."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._console = stderr()

    @property
    def schemas(self) -> list[dict[str, object]]:
        return self._tools.schemas

    async def call(self, name: str, arguments: str, call_id: str | None = None) -> ToolResult:
        self._console.print(_styled(_line(name), "bold"), _styled(_line(arguments)))
        result = await self._tools.call(name, arguments, call_id)
        color = "green" if result.ok else "red"
        self._console.print(_styled(_line(result.content), color))
        return result

    async def notices(self) -> list[Notice]:
        return await self._tools.notices()

    async def fit_turn(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        return await self._tools.fit_turn(results)


def _print(episode: Episode) -> None:
    console = stderr()
    for error in episode.errors:
        console.print(_styled(_line(f"turn {error.turn}: {error.kind}: {error.message}"), "red"))
    calls = len(episode.tool_calls)
    facts = f"{episode.turns} turns, {calls} calls, {episode.duration_s:.1f} s"
    console.print(f"{episode.finish} ({episode.cause}), {facts}")
    if episode.answer:
        typer.echo(_safe(episode.answer))


def _styled(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _facts(episode: Episode) -> dict[str, object]:
    return {
        "finish": episode.finish,
        "cause": episode.cause,
        "trainable": episode.trainable,
        "answer": episode.answer,
        "turns": episode.turns,
        "tool_calls": episode.tool_calls,
        "usage": episode.usage,
        "errors": episode.errors,
        "duration_s": round(episode.duration_s, 3),
    }


def _line(text: str) -> str:
    """One line, cut, with what a terminal would act on escaped."""
    shown = _safe(text).replace("\n", " ")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]} …"


def _safe(text: str) -> str:
    return "".join(char if char in "\n\t" or char.isprintable() else json.dumps(char)[1:-1] for char in text)
