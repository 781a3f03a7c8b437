"""`hermes-exec agent`: one task, one slot, one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_agent.cli.options import (
    LoopOptions,
    ModelName,
    ModelOptions,
    Strict,
    ToolOption,
    Toolsets,
    flatten_options,
)
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, printable, say, stderr
from hermes_exec.cli.kit.pools import (
    AsJson,
    Backend,
    Config,
    Image,
    Options,
    Profile,
    TraceTo,
    make_pool,
    parse_options,
)
from hermes_exec.errors import ConfigError, ErrorCause

if TYPE_CHECKING:
    from rich.text import Text

    from hermes_agent import Episode, Model, Rollout, SessionModel, ToolCall
    from hermes_exec import SandboxPool
    from hermes_exec.tools import ToolResult

app = typer.Typer(invoke_without_command=True, subcommand_metavar="")
_LINE_CHARS = 400
_CODES = {"infra": exits.INFRA, "model_error": exits.INFRA, "answered": exits.OK}


@app.callback(
    context_settings={"allow_interspersed_args": True},
    epilog='Example: hermes-exec agent "Count the lines of all Python files" --put ./src --model qwen3 '
    "--base-url http://localhost:8000/v1",
)
@flatten_options
def agent(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Task for the model.")],
    model: ModelName,
    model_options: ModelOptions,
    loop_options: LoopOptions,
    backend: Backend = None,
    image: Image = None,
    put: Annotated[
        list[Path] | None,
        typer.Option(
            "--put", exists=True, help="File or directory to put into the working directory; may be repeated."
        ),
    ] = None,
    toolset: Toolsets = None,
    tool_option: ToolOption = None,
    strict: Strict = False,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    trace: TraceTo = None,
    as_json: AsJson = False,
) -> None:
    """Let a model work on one task in an isolated slot, show its tool calls on stderr and print its answer.

    Exit codes: 0 for an answer, 1 when the model ran into a limit (turns, tokens, context), 2 usage or configuration,
    also where the endpoint refuses key or model, or calls are in a format that --parser has to name, 3 when the model's
    service or the slot failed, 130 interrupted.
    """
    from hermes_agent import Hooks, Rollout
    from hermes_agent.models.factory import create_model
    from hermes_exec.tools import ToolOptions, select

    if not task.strip():
        raise ConfigError("the task is empty")
    places = {path.resolve().name: path for path in put or ()}
    if len(places) < len(put or ()):
        raise ConfigError("two files of --put have the same name, which would collide in the working directory")
    if left_out := select(toolset or (), strict=strict).unavailable:
        stderr().print(_rich_text(f"left out, not part of this package: {', '.join(left_out)}"))
    pool = make_pool(backend, image, config, profile, option, trace=trace)
    chat_model = create_model(model, **model_options.settings())
    printer = _CallPrinter()
    rollout = Rollout(
        messages=task,
        files=places,
        toolsets=toolset,
        tool_options=ToolOptions.of(parse_options(tool_option)),
        loop={
            **loop_options.settings(),
            "hooks": Hooks(before_call=printer.print_call, after_call=printer.print_result),
        },
    )
    raise typer.Exit(run_async(lambda: _run(pool, chat_model, rollout, as_json)))


async def _run(pool: SandboxPool, model: Model | SessionModel, rollout: Rollout, as_json: bool) -> int:
    from hermes_agent.parsers.unread_calls import UNREAD_CALLS

    async with pool:
        result = await rollout.run(pool, model)
    if result.episode is None:
        raise result.exception or RuntimeError("the rollout ended without an episode")
    episode = result.episode
    if as_json:
        emit_json({**_facts(episode), "messages": episode.messages})
    else:
        _print(episode)
    if episode.finish == "model_error" and episode.cause is ErrorCause.CONFIG:
        return exits.USAGE
    if any(error.kind == UNREAD_CALLS for error in episode.errors):
        say("the model's calls were not read: name their format with --parser")
        return exits.USAGE
    return _CODES.get(episode.finish, exits.FAILED)


class _CallPrinter:
    """Prints each call and the beginning of its result on stderr."""

    def __init__(self) -> None:
        self._console = stderr()

    def print_call(self, call: ToolCall) -> None:
        self._console.print(_rich_text(_line(call.name), "bold"), _rich_text(_line(call.arguments)))

    def print_result(self, call: ToolCall, result: ToolResult) -> None:
        self._console.print(_rich_text(_line(result.content), "green" if result.ok else "red"))


def _print(episode: Episode) -> None:
    console = stderr()
    for error in episode.errors:
        console.print(_rich_text(_line(f"turn {error.turn}: {error.kind}: {error.message}"), "red"))
    calls = len(episode.tool_calls)
    facts = f"{episode.turns} turns, {calls} calls, {episode.duration_s:.1f} s"
    console.print(f"{episode.finish} ({episode.cause}), {facts}")
    if episode.answer:
        typer.echo(printable(episode.answer))


def _rich_text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _facts(episode: Episode) -> dict[str, object]:
    return {
        "finish": episode.finish,
        "cause": episode.cause,
        "trainable": episode.trainable,
        "answer": episode.answer,
        "turns": episode.turns,
        "tool_calls": [replace(call, images=()) for call in episode.tool_calls],
        "usage": episode.usage,
        "errors": episode.errors,
        "duration_s": round(episode.duration_s, 3),
    }


def _line(text: str) -> str:
    """Return a text as one line, shortened, with the characters escaped that a terminal would act on."""
    line = printable(text).replace("\n", " ")
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]} …"
