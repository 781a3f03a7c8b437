"""`hermes-exec config`: shows, checks, describes and imports the settings of a pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_exec.cli.kit.output import emit_json, say, stdout
from hermes_exec.cli.kit.pools import (
    AlwaysJson,
    AsJson,
    Backend,
    Config,
    Image,
    Options,
    Profile,
    make_pool,
    settings_of,
)
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError

if TYPE_CHECKING:
    from hermes_exec.config import PoolConfig, ResolvedConfig


def show(
    backend: Backend = None,
    image: Image = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings that a command with these options would use, defaults filled in and secrets masked."""
    from hermes_exec.pool.template import DEFAULT_PIDS
    from hermes_exec.redact import mask_data, secret_values

    pool, chosen = _resolve(settings_of(backend, image, config, option, profile))
    of_profiles = [chosen.with_options(own.backend_options) for own in pool.profiles.values()]
    same = {name for name in type(chosen).model_fields if name in type(pool).model_fields and not getattr(chosen, name)}
    values = {**pool.model_dump(mode="json"), "backend_options": chosen.model_dump(mode="json", exclude=same)}
    if not getattr(chosen, "gpus_per_slot", None):  # otherwise the GPUs of each host decide
        values["slots_per_sandbox"] = pool.slots_per_sandbox or chosen.default_slots
    values["max_sandboxes"] = pool.max_sandboxes or chosen.default_max_sandboxes
    if "pids" not in pool.slot_limits.model_fields_set:
        values["slot_limits"]["pids"] = DEFAULT_PIDS
    values = mask_data(values, secret_values(pool, chosen, *of_profiles))
    _emit(values, as_json)


def schema(as_json: AlwaysJson = True) -> None:
    """Print the JSON schema of a configuration file."""
    from hermes_exec.backends.registry import config_types
    from hermes_exec.config import pool_schema

    emit_json(pool_schema(config_types()))


def check(
    file: Annotated[Path, typer.Argument(help="YAML, TOML or JSON file.")],
    as_json: AsJson = False,
) -> None:
    """Check a configuration file, with all backends that it names.

    Ends with 2, and one line per error, if something in the file is wrong; with 3 if a backend is not installed.
    """
    from hermes_exec.config import backend_sections, read_config

    values = read_config(file)
    names: list[str | None] = [*backend_sections(values)]
    if not names or "backend" in values:
        names.append(None)
    configs: dict[str | None, PoolConfig] = {}
    wrong: dict[str, list[str | None]] = {}
    worst: type[ExecError] = BackendUnavailable
    for name in names:
        try:
            configs[name] = make_pool(name, None, file, environ={}).config
        except (ConfigError, BackendUnavailable) as error:
            worst = ConfigError if isinstance(error, ConfigError) else worst
            for line in str(error).splitlines():
                wrong.setdefault(line, []).append(name)
    if wrong:
        raise worst("\n".join(_of_its_backend(line, own, names) for line, own in wrong.items()))
    profiles = list(dict.fromkeys(name for config in configs.values() for name in config.profiles))
    backends = {name: config.backend for name, config in configs.items() if name}
    backends = backends or {config.backend: config.backend for config in configs.values()}
    if as_json:
        emit_json({"file": str(file), "ok": True, "backends": backends, "profiles": profiles})
    else:
        backend_names = ", ".join(name if name == kind else f"{name} ({kind})" for name, kind in backends.items())
        stdout().print(f"{file}: good, backend {backend_names}, {len(profiles)} profiles", markup=False)


def import_older(
    file: Annotated[
        Path | None, typer.Argument(help="A modal_profiles.yaml, or the settings of an RL environment (section env).")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", "-b", help="Type of the backend, instead of the one in the older names.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a configuration file from the names of older systems.

    They are read from FILE, or without one from the variables TERMINAL_…, ATROPOS_…, TOOL_EXECUTOR_… and NOMAD_… of the
    environment. Names without a counterpart are listed on stderr.
    """
    from hermes_exec.config.older_names import import_file, import_names

    options, became, left_out = import_names(os.environ, backend) if file is None else import_file(file, backend)
    for line in left_out:
        say(line)
    for name, option in became.items():
        if option.startswith("environment."):
            say(f"{name} is left out: it is {option.removeprefix('environment.')} of the RL environment")
    if not became and not left_out:
        raise ConfigError(
            "the environment has no variables of older systems; give a file with their settings as an argument"
        )
    values = {"backend": backend or "local", **options}
    values = {name: value for name, value in values.items() if name != "environment" and value is not None}
    _resolve(values)
    _emit(values, as_json)


def _emit(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        import yaml

        stdout().print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), markup=False, end="")


def _of_its_backend(line: str, own: list[str | None], all_of_them: list[str | None]) -> str:
    """Return an error line with its backends in front, unless the line names them or concerns the whole file."""
    named = line.startswith("backends.") or len(own) == len(all_of_them) or None in own
    return line if named else f"backends.{', '.join(map(str, own))}: {line}"


def _resolve(settings: dict[str, Any]) -> ResolvedConfig:
    from hermes_exec.backends.registry import config_type
    from hermes_exec.config import resolve_config

    return resolve_config(settings, config_type(str(settings.get("backend", "local"))))


def add_to(app: typer.Typer) -> None:
    """Add the commands `config show`, `config schema`, `config check` and `config import`."""
    config = typer.Typer(no_args_is_help=True, help="Settings of a pool.")
    config.command(epilog="Example: hermes-exec config show -b docker -i debian:12 -o slots_per_sandbox=8")(show)
    config.command(epilog="Example: hermes-exec config schema > pool.schema.json")(schema)
    config.command(epilog="Example: hermes-exec config check pool.yaml")(check)
    config.command("import", epilog="Example: TERMINAL_ENV=docker hermes-exec config import > pool.yaml")(import_older)
    app.add_typer(config, name="config")
