"""The README of a data set, from which `datasets` and the Hugging Face Hub read its files and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


def data_set_card(
    *,
    title: str,
    to: str,
    files: Mapping[str, str],
    features: Mapping[str, Any] | None,
    counts: Mapping[str, int],
    models: Sequence[str],
) -> str:
    """Return the text of a README with the splits' files and, if the files do not show them, the types of columns."""
    config = {"config_name": "default", "data_files": [{"split": name, "path": path} for name, path in files.items()]}
    head: dict[str, Any] = {"configs": [config]}
    if features is not None:
        head["dataset_info"] = {"features": [{"name": name, **kind} for name, kind in features.items()]}
    rows = "".join(f"| {name} | {count} |\n" for name, count in counts.items())
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {title}\n\n"
        f"Trajectories of agents in the format `{to}`, written by `hermes-exec batch export`.\n"
        f"Models: {', '.join(models) or 'unknown'}.\n\n| split | records |\n|---|---|\n{rows}"
    )
