"""The settings of an environment: flags, the file given by `--config`, and the environment's own defaults."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import say
from hermes_exec.errors import ConfigError
from hermes_exec.private_files import make_directory, open_private

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hermes_atropos.config import SandboxEnvConfig
    from hermes_atropos.rollout_scheduler import RolloutScheduler

    ModelT = TypeVar("ModelT", bound=BaseModel)

_MASK = "****"
_RESUMABLE_SETTINGS = frozenset(
    {
        *(
            "use_wandb",
            "wandb_name",
            "max_eval_workers",
            "max_num_workers",
            "eval_samples",
            "max_rerolls",
            "max_failed_groups",
        ),
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
"""Settings that may change when an evaluation is continued."""
_SECTIONS = ("env", "openai")
_TITLES = {
    "SandboxEnvConfig": "settings of every environment here",
    "BaseEnvConfig": "settings of atroposlib",
    "APIServerConfig": "inference server",
    "ServerBaseline": "inference server, further settings",
}


class CommandLineEnv(Protocol):
    """The part of a `SandboxAgentEnv` that the command line uses."""

    name: ClassVar[str | None]
    config: SandboxEnvConfig
    scheduler: RolloutScheduler[Any]
    process_mode: bool
    n_groups_to_process: int
    group_size_to_process: int

    def __init__(self, config: SandboxEnvConfig, server_configs: list[Any]) -> None: ...

    @classmethod
    def config_init(cls) -> tuple[Any, list[Any]]:
        """Return the default settings and servers."""

    async def env_manager(self) -> None:
        """Run `serve`."""

    async def process_manager(self) -> None:
        """Run `process`."""

    async def _run_evaluate(self) -> None:
        """Run `evaluate`."""


def read_settings(
    env_class: type[CommandLineEnv], command: str, arguments: Sequence[str], program: str
) -> tuple[Any, list[Any]]:
    """Return the settings and the servers.

    Flags take precedence over the file given by `--config`, and that file over the environment's defaults. An unknown
    flag exits the process, as argparse does.

    Raises:
        ConfigError: If the file, a name or a value is wrong.
    """
    from atroposlib.envs.server_handling.server_manager import APIServerConfig

    default, default_servers = env_class.config_init()
    flags = _flags(program, env_class, type(default), APIServerConfig).parse_args(arguments)
    file_settings = _read_file(flags.config)
    _check_sections(file_settings, flags.config)
    own = {name: getattr(default, name) for name in default.model_fields_set}
    if tokenizer := os.environ.get("ATROPOS_TOKENIZER_NAME"):
        own["tokenizer_name"] = tokenizer
    if command == "process":
        # The defaults of atroposlib for this command, except wandb, which is opt-in here.
        path = default.data_path_to_save_groups or f"data/{env_class.name or 'groups'}.jsonl"
        own |= {"ensure_scores_are_not_same": False, "include_messages": True, "data_path_to_save_groups": path}
    settings = {**own, **_get_section(file_settings, "env"), **_flag_values(flags, "env.")}
    config = _validate(type(default), settings, "env")
    servers = file_settings.get("openai") or {}
    servers = [servers] if isinstance(servers, Mapping) else list(servers)
    flag_values = _flag_values(flags, "openai.")
    if len(servers) > 1:
        if flag_values:
            raise ConfigError(f"{flags.config} names several servers: remove the --openai flags")
        checks = {"health_check": default_servers[0].health_check}
        return config, [_validate(APIServerConfig, {**checks, **server}, "openai") for server in servers]
    if len(default_servers) > 1 and not servers and not flag_values:
        return config, default_servers
    first = {**default_servers[0].model_dump(), **_server_from_variables()}
    return config, [_validate(APIServerConfig, {**first, **(servers[0] if servers else {}), **flag_values}, "openai")]


class _Parser(argparse.ArgumentParser):
    """Reports errors without printing the 200 flags, and suggests the nearest flag."""

    names: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Print the error and exit the process."""
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        near = difflib.get_close_matches(unknown.partition("=")[0], self.names, 1)
        hint = f"; did you mean {near[0]}?" if near and near[0] != unknown else ""
        say(f"{self.prog}: {message}{hint} (--help lists all flags)")
        sys.exit(exits.USAGE)


def _flags(
    program: str, env_class: type[CommandLineEnv], config: type[BaseModel], server: type[BaseModel]
) -> argparse.ArgumentParser:
    from hermes_exec.config.older_names import FIELDS

    usage = "%(prog)s [--config FILE] [--env.NAME VALUE …] [--openai.NAME VALUE …]"
    parser = _Parser(prog=program, usage=usage, description=env_class.__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="YAML file with the sections env and openai")
    sections = (("env.", config), ("openai.", server))
    parser.names = ["--config", *(f"--{prefix}{name}" for prefix, model in sections for name in model.model_fields)]
    for prefix, model in sections:
        groups = {title: parser.add_argument_group(title) for title in _titles(model)}
        for name, field in model.model_fields.items():
            text = f"{field.description or ''} (default: {field.get_default(call_default_factory=True)})".replace(
                "%", "%%"
            )
            flag = f"--{prefix}{name}"
            groups[_title(model, name)].add_argument(flag, default=argparse.SUPPRESS, metavar="X", help=text)
    for name in FIELDS:
        parser.add_argument(f"--env.{name}", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _titles(model: type[BaseModel]) -> Sequence[str]:
    """Return the sections of the help in order, with the environment's own settings first."""
    return list(dict.fromkeys(_title(each, name) for each in model.__mro__ for name in _own_fields(each)))


def _title(model: type[BaseModel], name: str) -> str:
    """Return the help section of a field: the section of the class that defined the field last."""
    owner = next(each for each in model.__mro__ if name in _own_fields(each))
    return _TITLES.get(owner.__name__, "settings of this environment")


def _own_fields(model: type) -> Mapping[str, Any]:
    return getattr(model, "__annotations__", {}) if hasattr(model, "model_fields") else {}


def _flag_values(flags: argparse.Namespace, prefix: str) -> dict[str, Any]:
    values = {name.removeprefix(prefix): value for name, value in vars(flags).items() if name.startswith(prefix)}
    return {name: None if value == "None" else value for name, value in values.items()}


def _read_file(path: str | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            settings = yaml.safe_load(file) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"the --config file cannot be read: {error}") from error
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"{path} must be a mapping with sections such as env and openai, not {type(settings).__name__}"
        )
    return settings


def _check_sections(settings: Mapping[str, Any], path: str | None) -> None:
    for name in settings:
        near = [] if name in _SECTIONS else difflib.get_close_matches(str(name), _SECTIONS, 1, 0.7)
        if near:
            raise ConfigError(f"{path}: unknown section {name!r}; did you mean {near[0]!r}?")
    if path is not None and not settings.keys() & set(_SECTIONS):
        raise ConfigError(f"{path} has neither a section env nor a section openai")


def _get_section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = settings.get(name) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"the section {name} must be a mapping, not {type(section).__name__}")
    return section


def _validate(model: type[ModelT], values: Mapping[str, Any], section: str) -> ModelT:
    """Return a model with these values.

    Raises:
        ConfigError: If a field is wrong; the message names each one.
    """
    from pydantic import ValidationError

    from hermes_exec.config import nearest
    from hermes_exec.config.older_names import FIELDS

    unknown = sorted(values.keys() - model.model_fields.keys() - (FIELDS if section == "env" else set()))
    if unknown:
        problem = f"the section {section} has no {', '.join(map(repr, unknown))}"
        raise ConfigError(f"{problem}; {nearest(unknown[0], model.model_fields)}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        wrong = [
            f"{'.'.join([section, *map(str, detail['loc'])])}: {detail['msg'].removeprefix('Value error, ')}"
            for detail in error.errors(include_url=False)
        ]
        raise ConfigError("; ".join(wrong)) from None


def _server_from_variables() -> dict[str, Any]:
    """Return the server that environment variables name, as earlier environments read them."""
    variables = {
        "base_url": os.environ.get("ATROPOS_SERVER_BASE_URL"),
        "model_name": os.environ.get("ATROPOS_SERVER_MODEL"),
        "api_key": os.environ.get("ATROPOS_SERVER_API_KEY"),
        "timeout": os.environ.get("ATROPOS_SERVER_TIMEOUT_S"),
    }
    return {name: value for name, value in variables.items() if value}


def keep_settings(directory: Path, config: BaseModel, servers: Sequence[BaseModel]) -> None:
    """Write the settings next to the results of an evaluation, without keys.

    Raises:
        ConfigError: If the directory has results of an evaluation with other settings.
    """
    import yaml

    path = directory / "evaluate_config.yaml"
    hidden = [{**server.model_dump(mode="json"), "api_key": _MASK} for server in servers]
    settings = {"env": config.model_dump(mode="json"), "openai": hidden}
    if path.exists() and (directory / "samples.jsonl").exists():
        before = yaml.safe_load(path.read_text("utf-8")) or {}
        others = _differences(before, settings)
        if others:
            raise ConfigError(
                f"{directory} has results of an evaluation with another {', '.join(others)}: use another "
                "directory, or remove it"
            )
    make_directory(directory)
    with open(path, "w", encoding="utf-8", opener=open_private) as file:
        yaml.safe_dump(settings, file, sort_keys=False)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differing settings that change the evaluation itself, not only its place or speed."""
    old, new = before.get("env") or {}, now["env"]
    names = [name for name in new if name not in _RESUMABLE_SETTINGS and old.get(name, new[name]) != new[name]]
    models = [[server.get("model_name") for server in each.get("openai") or ()] for each in (before, now)]
    return [f"env.{name}" for name in names] + (["openai.model_name"] if models[0] != models[1] else [])
