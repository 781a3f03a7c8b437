"""`hermes-exec env`: the environments, and the command line of each of them."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.ending import end_with
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import LogHandler, emit_json, say, stdout
from hermes_exec.errors import ConfigError
from hermes_exec.private_files import make_directory, private

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from hermes_atropos.env import SandboxAgentEnv
    from hermes_atropos.evaluation import Evaluated
    from hermes_atropos.groups import Finished

    ModelT = TypeVar("ModelT", bound=BaseModel)

ENVIRONMENTS: Mapping[str, str] = {
    "terminal_test": "make a file with a text: three tasks, to see that everything works",
    "swe_smith_oracle": "mend a bug in a real package, scored by the package's own tests",
    "endless_terminals": "bring a machine into a state, each task in an image of its own",
    "terminalbench_2": "TerminalBench 2: an evaluation",
    "tblite": "100 easier tasks in the form of TerminalBench 2: an evaluation",
    "hermes_swe": "write a function, scored by its tests (HumanEvalPack)",
    "gsm8k_agent": "solve a word problem with tools (GSM8K)",
}
"""The environments of this package, each a module of `hermes_atropos.envs`, and what they are."""

_COMMANDS = {
    "serve": "fill groups for a trainer, through the server of atropos (`run-api`)",
    "process": "write groups to a file",
    "evaluate": "evaluate the model",
}
_HIDDEN = "****"
_HOW = frozenset(
    {
        *("use_wandb", "wandb_name", "max_eval_workers", "max_num_workers", "max_rerolls", "max_failed_groups"),
        *(
            "request_timeout_s",
            "server_wait_s",
            "acquire_timeout_s",
            "worker_timeout",
            "data_dir_to_save_evals",
            "backend_options",
        ),
        *("pool_config", "slots_per_sandbox", "min_sandboxes", "max_sandboxes", "idle_timeout_s", "max_lifetime_s"),
        *("cpus", "memory_mb", "num_rollouts_to_keep", "num_rollouts_per_group_for_logging", "rollout_server_url"),
    }
)
"""Settings with which an evaluation may go on."""
_SECTIONS = ("env", "openai")
_TITLES = {
    "SandboxEnvConfig": "settings of every environment here",
    "BaseEnvConfig": "settings of atroposlib",
    "SeedNames": "older names",
    "APIServerConfig": "inference server",
    "ServerBaseline": "inference server, further settings",
}
_AnyArguments = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(no_args_is_help=True, help="RL environments for the trainers of atropos.")


@app.command("list")
def list_environments(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the environments."""
    if as_json:
        emit_json(dict(ENVIRONMENTS))
        return
    from rich.table import Table

    table = Table("environment", "what is to be done")
    for name, what in ENVIRONMENTS.items():
        table.add_row(name, what)
    stdout().print(table)


def _command(command: str) -> None:
    @app.command(
        command, context_settings=_AnyArguments, help=f"{_COMMANDS[command].capitalize()}.", add_help_option=False
    )
    def run(context: typer.Context) -> None:
        name, *arguments = context.args or [""]
        if name in ("", "--help"):
            say(f"usage: hermes-exec env {command} NAME [--help | --config FILE | --env.X VALUE | --openai.X VALUE]")
            say(f"NAME is one of {', '.join(ENVIRONMENTS)}")
            raise typer.Exit(exits.USAGE if not name else exits.OK)
        raise typer.Exit(_run(environment(name), command, arguments, f"hermes-exec env {command} {name}"))


for _name in _COMMANDS:
    _command(_name)

swe = typer.Typer(help="Tools of the environment swe_smith_oracle.")
app.add_typer(swe, name="swe-smith")


@swe.command("make", context_settings=_AnyArguments, add_help_option=False)
def make(context: typer.Context) -> None:
    """Make instances: bugs in a real package, each proven by its tests."""
    from hermes_atropos.envs.swe_smith_oracle.make import make_app

    make_app(args=list(context.args), prog_name="hermes-exec env swe-smith make")


def run_command(work: Callable[[], Awaitable[int]]) -> int:
    """Run the asynchronous part of a command, which signals end, and return its exit code."""
    return run_async(work)


def environment(name: str) -> type[SandboxAgentEnv[Any]]:
    """The class of an environment of this package. Raises ConfigError for an unknown name, with the nearest one."""
    from importlib import import_module

    from hermes_exec.config import nearest

    if name not in ENVIRONMENTS:
        raise ConfigError(f"there is no environment {name!r}; {nearest(name.replace('-', '_'), ENVIRONMENTS)}")
    # Transformers says at its import that it has no torch, which nothing here needs.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        found: type[SandboxAgentEnv[Any]] = import_module(f"hermes_atropos.envs.{name}").ENV
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"environments need the extra atropos: pip install 'hermes-exec[atropos]' ({error})"
        ) from error
    return found


def run_environment(kind: type[SandboxAgentEnv[Any]]) -> None:
    """The command line of one environment: `serve | process | evaluate` and flags. Ends the process."""
    logging.basicConfig(level=logging.WARNING, handlers=[LogHandler()])
    program = f"python -m {kind.__module__}" if kind.__module__ != "__main__" else sys.argv[0]
    command, *arguments = sys.argv[1:] or [""]
    if command not in _COMMANDS:
        listed = "\n".join(f"  {name:10} {what}" for name, what in _COMMANDS.items())
        say(f"usage: {program} COMMAND [--help | --config FILE | --env.X VALUE | --openai.X VALUE]\n{listed}")
        sys.exit(exits.OK if command in ("-h", "--help") else exits.USAGE)
    end_with(lambda: sys.exit(_run(kind, command, arguments, f"{program} {command}")))


def _run(kind: type[SandboxAgentEnv[Any]], command: str, arguments: Sequence[str], program: str) -> int:
    config, servers = read_settings(kind, command, arguments, program)
    if command == "evaluate" and config.data_dir_to_save_evals is not None:
        _keep_settings(Path(config.data_dir_to_save_evals), config, servers)
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


def read_settings(
    kind: type[SandboxAgentEnv[Any]], command: str, arguments: Sequence[str], program: str
) -> tuple[Any, list[Any]]:
    """The settings and the servers: flags win over the file of `--config`, that over the environment's own.

    Raises ConfigError for a file, a name or a value that is wrong. A flag that is unknown ends the process, as argparse
    does.
    """
    from atroposlib.envs.server_handling.server_manager import APIServerConfig

    default, default_servers = kind.config_init()
    flags = _flags(program, kind, type(default), APIServerConfig).parse_args(arguments)
    given = _file(flags.config)
    _check_sections(given, flags.config)
    own = {name: getattr(default, name) for name in default.model_fields_set}
    if tokenizer := os.environ.get("ATROPOS_TOKENIZER_NAME"):
        own["tokenizer_name"] = tokenizer
    if command == "process":
        # What atroposlib says for this command; it would also want wandb, which is asked for here.
        path = default.data_path_to_save_groups or f"data/{kind.name or 'groups'}.jsonl"
        own |= {"ensure_scores_are_not_same": False, "include_messages": True, "data_path_to_save_groups": path}
    settings = {**own, **_section(given, "env"), **_flagged(flags, "env.")}
    config = _made(type(default), settings, "env")
    servers = given.get("openai") or {}
    servers = [servers] if isinstance(servers, Mapping) else list(servers)
    on_line = _flagged(flags, "openai.")
    if len(servers) > 1:
        if on_line:
            raise ConfigError(f"with several servers in {flags.config} there can be no --openai flags")
        return config, [_made(APIServerConfig, server, "openai") for server in servers]
    if len(default_servers) > 1 and not servers and not on_line:
        return config, default_servers
    first = {**default_servers[0].model_dump(), **_server_of_environment()}
    return config, [_made(APIServerConfig, {**first, **(servers[0] if servers else {}), **on_line}, "openai")]


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong without the two hundred flags that there are, and which of them is the nearest."""

    names: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Tell, and end the process."""
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        near = difflib.get_close_matches(unknown.partition("=")[0], self.names, 1)
        hint = f"; did you mean {near[0]}?" if near and near[0] != unknown else ""
        say(f"{self.prog}: {message}{hint} (--help lists all flags)")
        sys.exit(exits.USAGE)


def _flags(
    program: str, kind: type[SandboxAgentEnv[Any]], config: type[BaseModel], server: type[BaseModel]
) -> argparse.ArgumentParser:
    usage = "%(prog)s [--config FILE] [--env.NAME VALUE …] [--openai.NAME VALUE …]"
    parser = _Parser(prog=program, usage=usage, description=kind.__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="YAML file with the sections env and openai")
    sections = (("env.", config), ("openai.", server))
    parser.names = ["--config", *(f"--{prefix}{name}" for prefix, model in sections for name in model.model_fields)]
    for prefix, model in sections:
        groups = {title: parser.add_argument_group(title) for title in _titles(model)}
        for name, field in model.model_fields.items():
            older = (field.description or "").startswith("an older name")
            text = f"{field.description or ''} (default: {field.get_default(call_default_factory=True)})".replace(
                "%", "%%"
            )
            groups[_title(model, name)].add_argument(
                f"--{prefix}{name}", default=argparse.SUPPRESS, metavar="X", help=argparse.SUPPRESS if older else text
            )
    return parser


def _titles(model: type[BaseModel]) -> Sequence[str]:
    """The parts of the help, in order: what is the environment's own comes first."""
    return list(dict.fromkeys(_title(each, name) for each in model.__mro__ for name in _own_fields(each)))


def _title(model: type[BaseModel], name: str) -> str:
    """The part of the help in which a field stands: that of the class that defined it last."""
    of = next(each for each in model.__mro__ if name in _own_fields(each))
    return _TITLES.get(of.__name__, "settings of this environment")


def _own_fields(kind: type) -> Mapping[str, Any]:
    return getattr(kind, "__annotations__", {}) if hasattr(kind, "model_fields") else {}


def _flagged(flags: argparse.Namespace, prefix: str) -> dict[str, Any]:
    given = {name.removeprefix(prefix): value for name, value in vars(flags).items() if name.startswith(prefix)}
    return {name: None if value == "None" else value for name, value in given.items()}


def _file(path: str | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            given = yaml.safe_load(file) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"the file of --config cannot be read: {error}") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path} is a mapping with sections such as env and openai, not {type(given).__name__}")
    return given


def _check_sections(given: Mapping[str, Any], path: str | None) -> None:
    for name in given:
        near = [] if name in _SECTIONS else difflib.get_close_matches(str(name), _SECTIONS, 1, 0.7)
        if near:
            raise ConfigError(f"{path}: there is a section {name!r}; did you mean {near[0]!r}?")
    if path is not None and not given.keys() & set(_SECTIONS):
        raise ConfigError(f"{path} has neither a section env nor a section openai")


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = given.get(name) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"the section {name} is a mapping, not {type(section).__name__}")
    return section


def _made(model: type[ModelT], values: Mapping[str, Any], section: str) -> ModelT:
    """A model of these values. Raises ConfigError that names each wrong field."""
    from pydantic import ValidationError

    from hermes_exec.config import nearest

    unknown = sorted(values.keys() - model.model_fields.keys())
    if unknown:
        told = f"the section {section} has no {', '.join(map(repr, unknown))}"
        raise ConfigError(f"{told}; {nearest(unknown[0], model.model_fields)}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        wrong = [
            f"{'.'.join([section, *map(str, one['loc'])])}: {one['msg'].removeprefix('Value error, ')}"
            for one in error.errors(include_url=False)
        ]
        raise ConfigError("; ".join(wrong)) from None


def _server_of_environment() -> dict[str, Any]:
    """The server that variables of the environment name, as older environments read them."""
    read = {
        "base_url": os.environ.get("ATROPOS_SERVER_BASE_URL"),
        "model_name": os.environ.get("ATROPOS_SERVER_MODEL"),
        "api_key": os.environ.get("ATROPOS_SERVER_API_KEY"),
        "timeout": os.environ.get("ATROPOS_SERVER_TIMEOUT_S"),
    }
    given = {name: value for name, value in read.items() if value}
    return {"server_type": "openai", **given} if "base_url" in given else given


def _keep_settings(folder: Path, config: BaseModel, servers: Sequence[BaseModel]) -> None:
    """Write the settings beside the results of an evaluation, without keys. Raises ConfigError where there are results
    of an evaluation with others: it would go on with these.
    """
    import yaml

    path = folder / "evaluate_config.yaml"
    hidden = [{**server.model_dump(mode="json"), "api_key": _HIDDEN} for server in servers]
    settings = {"env": config.model_dump(mode="json"), "openai": hidden}
    if path.exists() and (folder / "samples.jsonl").exists():
        before = yaml.safe_load(path.read_text("utf-8")) or {}
        others = _differences(before, settings)
        if others:
            raise ConfigError(
                f"{folder} has results of an evaluation with another {', '.join(others)}: name another folder, or "
                "remove it"
            )
    make_directory(folder)
    with open(path, "w", encoding="utf-8", opener=private) as file:
        yaml.safe_dump(settings, file, sort_keys=False)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that differ and say what is evaluated, not where and how fast."""
    old, new = before.get("env") or {}, now["env"]
    names = [name for name in new if name not in _HOW and old.get(name, new[name]) != new[name]]
    models = [[server.get("model_name") for server in each.get("openai") or ()] for each in (before, now)]
    return [f"env.{name}" for name in names] + (["openai.model_name"] if models[0] != models[1] else [])
