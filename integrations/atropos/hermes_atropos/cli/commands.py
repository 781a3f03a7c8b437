"""The commands of `hermes-exec env`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_atropos.cli import swe_smith
from hermes_atropos.cli.run import COMMANDS, run
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import emit_json, say, stdout
from hermes_exec.errors import ConfigError

if TYPE_CHECKING:
    from hermes_atropos.env import SandboxAgentEnv

ENVIRONMENTS: Mapping[str, str] = {
    "terminal_test": "write a text file: three tasks to check that everything works",
    "swe_smith_oracle": "fix a bug in a real package, scored by the package's own tests",
    "endless_terminals": "bring a machine into a given state, each task in its own image",
    "terminalbench_2": "TerminalBench 2: an evaluation",
    "tblite": "100 easier tasks in the format of TerminalBench 2: an evaluation",
    "hermes_swe": "write a function, scored by its tests (HumanEvalPack)",
    "gsm8k_agent": "solve a word problem with tools (GSM8K)",
}
"""The environments of this package with their descriptions. Each is a module of `hermes_atropos.envs`."""

_AnyArguments = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(no_args_is_help=True, help="RL environments for atropos trainers.")


@app.command("list")
def list_environments(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the environments."""
    if as_json:
        emit_json(dict(ENVIRONMENTS))
        return
    from rich.table import Table

    table = Table("environment", "task")
    for name, description in ENVIRONMENTS.items():
        table.add_row(name, description)
    stdout().print(table)


def _command(command: str) -> None:
    @app.command(
        command, context_settings=_AnyArguments, help=f"{COMMANDS[command].capitalize()}.", add_help_option=False
    )
    def run_command(context: typer.Context) -> None:
        name, *arguments = context.args or [""]
        if name in ("", "--help"):
            say(f"usage: hermes-exec env {command} NAME [--help | --config FILE | --env.X VALUE | --openai.X VALUE]")
            say(f"NAME is one of {', '.join(ENVIRONMENTS)}")
            raise typer.Exit(exits.USAGE if not name else exits.OK)
        raise typer.Exit(run(load_environment(name), command, arguments, f"hermes-exec env {command} {name}"))


for _name in COMMANDS:
    _command(_name)

app.add_typer(swe_smith.app, name="swe-smith")


def load_environment(name: str) -> type[SandboxAgentEnv[Any]]:
    """Return the class of an environment of this package.

    Raises:
        ConfigError: If there is no such environment (with the nearest name), or if the extra `atropos` is not
            installed.
    """
    from importlib import import_module

    from hermes_exec.config import nearest

    if name not in ENVIRONMENTS:
        raise ConfigError(f"there is no environment {name!r}; {nearest(name.replace('-', '_'), ENVIRONMENTS)}")
    # Transformers warns on import that torch is missing. Nothing here needs torch.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        env_class: type[SandboxAgentEnv[Any]] = import_module(f"hermes_atropos.envs.{name}").ENV
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"environments need the extra atropos: pip install 'hermes-exec[atropos]' ({error})"
        ) from error
    return env_class
