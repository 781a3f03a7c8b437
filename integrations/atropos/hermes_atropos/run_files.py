"""The files of a run that atroposlib writes: private to their owner, and removed if empty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_exec.errors import ConfigError
from hermes_exec.private_files import make_directory, restrict_to_owner

if TYPE_CHECKING:
    from hermes_atropos.config import SandboxEnvConfig

METRICS = "metrics.json"


def make_directories(config: SandboxEnvConfig) -> None:
    """Create the directories for groups and evaluations before atroposlib does.

    Raises:
        ConfigError: If a directory cannot be created.
    """
    groups, evals = config.data_path_to_save_groups, config.data_dir_to_save_evals
    for path in ([Path(groups).parent] if groups else []) + ([Path(evals)] if evals else []):
        try:
            make_directory(path)
        except OSError as error:
            raise ConfigError(f"cannot create the directory {path}: {error.strerror or error}") from error


def keep_groups_private(config: SandboxEnvConfig) -> None:
    """Make the file of groups, which atroposlib has just created, private to its owner."""
    if config.data_path_to_save_groups:
        restrict_to_owner(config.data_path_to_save_groups)


def keep_metrics_private(config: SandboxEnvConfig) -> None:
    """Make the metrics file of an evaluation private to its owner."""
    restrict_to_owner(Path(config.data_dir_to_save_evals) / METRICS)


def close_groups(writer: Any, config: SandboxEnvConfig) -> None:  # noqa: ANN401 - jsonlines has no types
    """Close the file of groups and remove it if it is empty. Otherwise atroposlib would name the next file NAME_1."""
    if writer is None:
        return
    writer.close()
    path = Path(config.data_path_to_save_groups)
    if path.exists() and path.stat().st_size == 0:
        path.unlink()
