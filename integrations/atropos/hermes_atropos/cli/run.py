"""Runs one command of one environment."""

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

    from hermes_atropos.evaluation import EvaluatedItem
    from hermes_atropos.groups import Group

COMMANDS = {
    "serve": "fill groups for a trainer, through the atropos server (`run-api`)",
    "process": "write groups to a file",
    "evaluate": "evaluate the model",
}


def run_environment(env_class: type[CommandLineEnv]) -> None:
    """Run the command line of one environment (`serve | process | evaluate` and flags), then exit the process."""
    logging.basicConfig(level=logging.WARNING, handlers=[LogHandler()])
    program = f"python -m {env_class.__module__}" if env_class.__module__ != "__main__" else sys.argv[0]
    command, *arguments = sys.argv[1:] or [""]
    if command not in COMMANDS:
        listed = "\n".join(f"  {name:10} {description}" for name, description in COMMANDS.items())
        say(f"usage: {program} COMMAND [--help | --config FILE | --env.X VALUE | --openai.X VALUE]\n{listed}")
        sys.exit(exits.OK if command in ("-h", "--help") else exits.USAGE)
    end_with(lambda: sys.exit(run(env_class, command, arguments, f"{program} {command}")))


def run(env_class: type[CommandLineEnv], command: str, arguments: Sequence[str], program: str) -> int:
    """Run one command of an environment and return its exit code."""
    config, servers = read_settings(env_class, command, arguments, program)
    if command == "evaluate" and config.data_dir_to_save_evals is not None:
        keep_settings(Path(config.data_dir_to_save_evals), config, servers)
    # It logs its status ten times a second.
    logging.getLogger("atroposlib.envs.base").setLevel(min(logging.WARNING, logging.getLogger().level))
    env = env_class(config, servers)
    env.scheduler.on_group = _GroupReporter(config.total_steps if command == "process" else None)
    env.scheduler.on_item = _report_item
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
    except SystemExit as error:
        from hermes_atropos.errors import EnvironmentMistake

        raise EnvironmentMistake(
            f"the code of {env_class.__name__} raised {error!r}, which would end the process"
        ) from error
    if command == "process":
        say(f"groups: {env.config.data_path_to_save_groups}")
    return code


class _GroupReporter:
    """Prints each group when it is filled."""

    def __init__(self, of: int | None) -> None:
        self._of, self._count = "" if of is None else f"/{of}", 0

    def __call__(self, group: Group) -> None:
        self._count += 1
        done = group.done
        rewards = " ".join(f"{rollout.reward:g}" for rollout in done)
        episodes = [rollout.result.episode for rollout in done if rollout.result.episode is not None]
        calls = sum(episode.call_count for episode in episodes)
        malformed = sum(call.error_kind == "malformed_call" for episode in episodes for call in episode.tool_calls)
        seconds = max(rollout.result.seconds for rollout in done)
        calls_text = f"{calls} tool calls" + (f", {malformed} of them malformed" if malformed else "")
        rerolls = ", ".join(f"{cause} {count}" for cause, count in sorted(group.rerolls.items()))
        rerolls_text = f"; rerolls: {rerolls}" if rerolls else ""
        say(f"group {self._count}{self._of}: rewards {rewards}; {calls_text}; {seconds:.1f} s{rerolls_text}")
        if calls and malformed == calls:
            say("no tool call could be parsed: check that --env.tool_call_parser is the format that this model writes")


def _report_item(item: EvaluatedItem, count: int, total: int) -> None:
    outcome = {True: "solved", False: "not solved", None: f"no result: {item.error}"}[item.solved]
    name = f"{item.key}, sample {item.sample + 1}" if item.sample else item.key
    say(f"{count}/{total} {name}: {outcome} ({item.finish}, {item.turns} turns, {item.seconds:.1f} s)")
