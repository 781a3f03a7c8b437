"""One environment run by its command line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_atropos.cli.settings import CommandLineEnv, keep_settings, read_settings
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.ending import end_with
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import LogHandler, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hermes_atropos.evaluation import Evaluated
    from hermes_atropos.groups import Finished

COMMANDS = {
    "serve": "fill groups for a trainer, through the server of atropos (`run-api`)",
    "process": "write groups to a file",
    "evaluate": "evaluate the model",
}


def run_environment(kind: type[CommandLineEnv]) -> None:
    """The command line of one environment: `serve | process | evaluate` and flags. Ends the process."""
    logging.basicConfig(level=logging.WARNING, handlers=[LogHandler()])
    program = f"python -m {kind.__module__}" if kind.__module__ != "__main__" else sys.argv[0]
    command, *arguments = sys.argv[1:] or [""]
    if command not in COMMANDS:
        listed = "\n".join(f"  {name:10} {what}" for name, what in COMMANDS.items())
        say(f"usage: {program} COMMAND [--help | --config FILE | --env.X VALUE | --openai.X VALUE]\n{listed}")
        sys.exit(exits.OK if command in ("-h", "--help") else exits.USAGE)
    end_with(lambda: sys.exit(run(kind, command, arguments, f"{program} {command}")))


def run(kind: type[CommandLineEnv], command: str, arguments: Sequence[str], program: str) -> int:
    """Run one command of an environment, and return its exit code."""
    config, servers = read_settings(kind, command, arguments, program)
    if command == "evaluate" and config.data_dir_to_save_evals is not None:
        keep_settings(Path(config.data_dir_to_save_evals), config, servers)
    # It tells its status ten times a second.
    logging.getLogger("atroposlib.envs.base").setLevel(min(logging.WARNING, logging.getLogger().level))
    env = kind(config, servers)
    env.rolling.on_group = _Told(config.total_steps if command == "process" else None)
    env.rolling.on_item = _tell_item
    work: Mapping[str, Callable[[], Awaitable[None]]] = {
        "serve": env.env_manager,
        "process": env.process_manager,
        "evaluate": env._run_evaluate,
    }

    async def main() -> int:
        if command == "process":
            env.process_mode, env.n_groups_to_process = True, config.total_steps
            env.group_size_to_process = config.group_size
        await work[command]()
        return exits.OK

    try:
        code = run_async(main)
    except SystemExit as ended:
        from hermes_atropos.errors import EnvironmentMistake

        raise EnvironmentMistake(f"the code of {kind.__name__} raised {ended!r}, which ends programs") from ended
    if command == "process":
        say(f"groups: {env.config.data_path_to_save_groups}")
    return code


class _Told:
    """Tells each group as it is filled."""

    def __init__(self, of: int | None) -> None:
        self._of, self._count = "" if of is None else f"/{of}", 0

    def __call__(self, done: Sequence[Finished]) -> None:
        self._count += 1
        rewards = " ".join(f"{one.reward:g}" for one in done)
        calls = [call for one in done if one.result.episode is not None for call in one.result.episode.tool_calls]
        malformed = sum(call.error_kind == "malformed_call" for call in calls)
        seconds = max(one.result.seconds for one in done)
        told = f"{len(calls)} tool calls" + (f", {malformed} of them malformed" if malformed else "")
        say(f"group {self._count}{self._of}: rewards {rewards}; {told}; {seconds:.1f} s")
        if calls and malformed == len(calls):
            say("no tool call was understood: is --env.tool_call_parser the format in which this model writes them?")


def _tell_item(one: Evaluated, count: int, total: int) -> None:
    outcome = {True: "solved", False: "not solved", None: f"nothing can be said: {one.error}"}[one.solved]
    say(f"{count}/{total} {one.key}: {outcome} ({one.finish}, {one.turns} turns, {one.seconds:.1f} s)")
