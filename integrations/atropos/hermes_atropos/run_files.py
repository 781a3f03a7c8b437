"""The files of a run that atroposlib writes: their owner's alone, and without the empty ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_exec.errors import ConfigError
from hermes_exec.private_files import keep_private, make_directory

if TYPE_CHECKING:
    from hermes_atropos.config import SandboxEnvConfig

METRICS = "metrics.json"


def make_directories(config: SandboxEnvConfig) -> None:
    """Make the directories of groups and of an evaluation before atroposlib does.

    Raises:
        ConfigError: One cannot be made.
    """
    groups, evals = config.data_path_to_save_groups, config.data_dir_to_save_evals
    for path in ([Path(groups).parent] if groups else []) + ([Path(evals)] if evals else []):
        try:
            make_directory(path)
        except OSError as error:
            raise ConfigError(f"cannot make the directory {path}: {error.strerror or error}") from error


def keep_groups_private(config: SandboxEnvConfig) -> None:
    """Take the file of groups, which atroposlib has just made, from others."""
    if config.data_path_to_save_groups:
        keep_private(config.data_path_to_save_groups)


def keep_metrics_private(config: SandboxEnvConfig) -> None:
    """Take the metrics of an evaluation from others."""
    keep_private(Path(config.data_dir_to_save_evals) / METRICS)


def close_groups(writer: Any, config: SandboxEnvConfig) -> None:  # noqa: ANN401 - jsonlines has no types
    """Close the file of groups. One without any goes: beside it atroposlib would call the next one NAME_1."""
    if writer is None:
        return
    writer.close()
    path = Path(config.data_path_to_save_groups)
    if path.exists() and path.stat().st_size == 0:
        path.unlink()
