"""`run.json`: the settings and the progress of a run, so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_agent.models.factory import EMBEDDED
from hermes_batch.config import BatchConfig
from hermes_batch.result import BatchResult
from hermes_batch.rows.source import resolve_dataset
from hermes_exec import ConfigError, ExecError, PoolConfig, config_type
from hermes_exec.config import secret_fields
from hermes_exec.private_files import open_private

SETTINGS = "run.json"
_SEPARATE_FIELDS = frozenset({"out", "overwrite", "api_key", "dataset", "backend_options"})


def progress_facts(result: BatchResult) -> dict[str, Any]:
    """Return the progress of a run for `run.json`. `unrecorded` is what was spent without being in a record."""
    spending, recorded = result.spending, result.recorded
    return {
        "prompts": result.total,
        "records": result.records,
        "seconds": round(result.seconds, 3),
        "unrecorded": {"cost": spending.cost - recorded.cost, "tokens": spending.tokens - recorded.tokens},
    }


def write_settings(config: BatchConfig, progress: Mapping[str, Any]) -> None:
    """Write `run.json` into the run's directory, atomically.

    It contains neither the key of the endpoint nor the pool's secrets. Settings that cannot be stored (a model object,
    a secret) are listed under `again`: they must be given again to resume the run.
    """
    values, again = _serialize(config)
    facts = {
        "model": config.model_name,
        "backend": str(getattr(config.backend, "name", config.backend)),
        "image": config.image,
        "embedded": config.model == EMBEDDED,
        **progress,
        "config": values,
        "again": again,
        "until_solved": config.until_solved,
    }
    write_facts(config.out, facts)


def write_facts(out: Path, facts: Mapping[str, Any]) -> None:
    """Write `run.json`, atomically.

    Raises:
        ExecError: If it cannot be written.
    """
    aside = out / f".{SETTINGS}.new"
    with explain_write_errors(out):
        with open(aside, "w", encoding="utf-8", opener=open_private) as file:
            file.write(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
        aside.replace(out / SETTINGS)


@contextmanager
def explain_write_errors(out: Path) -> Iterator[None]:
    """Raise ExecError with the directory and the remedy if a file in it cannot be written, for example because the disk
    is full.
    """
    try:
        yield
    except OSError as error:
        resumable = (out / SETTINGS).exists()
        advice = f"resume the run: hermes-exec batch resume {out}" if resumable else "run it again, with --overwrite"
        raise ExecError(f"cannot write to {out}: {error.strerror or error}; fix that and {advice}") from error


def read_settings(out: Path) -> dict[str, Any]:
    """Return the content of `run.json`, or an empty dict if there is none."""
    try:
        settings = json.loads((out / SETTINGS).read_bytes())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def read_until_solved(out: Path) -> int | None:
    """Return the run's setting `until_solved`, or None if it has none."""
    value = read_settings(out).get("until_solved")
    return value if isinstance(value, int) else None


def read_config(out: Path, **changes: Any) -> BatchConfig:
    """Return the settings of the run in `out`, with changes. `backend_options` among the changes are added to the
    run's.

    Raises:
        ConfigError: If there is no run, or if a setting must be given again and is not.
    """
    settings = read_settings(out)
    if settings.get("rollouts"):
        raise ConfigError(f"{out} was written by run_rollouts: call it again with the same rollouts to continue")
    if not isinstance(settings.get("config"), dict):
        raise ConfigError(
            f"{out} has no run to resume: {SETTINGS} is missing or incomplete; begin with `hermes-exec batch run`"
        )
    values = {**settings["config"], **changes, "out": out}
    values["backend_options"] = {**settings["config"]["backend_options"], **changes.get("backend_options", {})}
    missing = [name for name in settings.get("again", ()) if name not in {*changes, *values["backend_options"]}]
    if missing:
        raise ConfigError(f"the run in {out} used {', '.join(missing)}, which is not stored: give it again")
    return BatchConfig.of(values)


def _serialize(config: BatchConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the settings as JSON types, and the names of those that cannot be stored."""
    values: dict[str, Any] = {}
    again: list[str] = []
    options: dict[str, Any] = {}
    for name in BatchConfig.model_fields.keys() - _SEPARATE_FIELDS:
        _record_value(name, getattr(config, name), frozenset(), values, again)
    secrets = secret_fields(PoolConfig)
    if isinstance(config.backend, str):
        secrets |= secret_fields(config_type(config.backend))
    for name, value in config.backend_options.items():
        _record_value(name, value, secrets, options, again)
    values |= {"dataset": resolve_dataset(config.dataset), "backend_options": options}
    return values, sorted(again)


def _record_value(name: str, value: object, secrets: frozenset[str], values: dict[str, Any], again: list[str]) -> None:
    plain = [*value] if isinstance(value, tuple) else value
    try:
        same = json.loads(json.dumps(plain)) == plain
    except (TypeError, ValueError):
        same = False
    if same and not _is_secret(name, plain, secrets):
        values[name] = plain
    else:
        again.append(name)


def _is_secret(name: str, value: object, fields: frozenset[str]) -> bool:
    """Return whether a value is secret or contains secrets, as profiles and backend settings may."""
    inner = value.items() if isinstance(value, dict) else ()
    return name in fields or any(_is_secret(key, part, fields) for key, part in inner)
