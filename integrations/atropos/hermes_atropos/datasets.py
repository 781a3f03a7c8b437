"""Rows of a dataset: from files of this host, or by name from the Hugging Face hub; and what a row must have."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hermes_exec import ConfigError

SHIPPED = "shipped"
"""The name of the small set of tasks that comes with each environment."""

T = TypeVar("T")
_SUFFIXES = (".jsonl", ".json", ".parquet")
_SPLITS = ("train", "test", "validation", "valid", "dev", "eval")
_HUB_TIMEOUT_S = 5.0
_DATA = Path(__file__).resolve().parent / "data"


def data_directory(environment: str) -> Path:
    """The directory with the tasks that come with an environment."""
    return _DATA / environment


def load_dataset_rows(name_or_path: str, split: str = "train") -> list[dict[str, Any]]:
    """All rows of a dataset; blocking.

    `name_or_path` is a `.jsonl`, `.json` (a list, or an object a line) or `.parquet` file of this host, a directory of
    these, or the name of a dataset of the hub (`owner/name`, or `owner/name:config`), for which the package `datasets`
    is imported. Of a directory with files that are named by splits (`test.jsonl`, `test-00000-of-00001.parquet`) only
    those of `split` are read.

    Raises ConfigError, which says what to do, when there are no rows to be had. A hub that does not answer costs five
    seconds.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        rows = [row for file in _split_files(path, split) for row in _read_file(file)]
    elif path.is_file():
        rows = _read_file(path)
    elif path.suffix in _SUFFIXES or name_or_path.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"the dataset {name_or_path!r}: there is no such file or directory")
    else:
        rows = _load_from_hub(name_or_path, split)
    if not rows:
        raise ConfigError(f"the dataset {name_or_path!r} (split {split!r}) has no rows")
    return rows


def load_items(name: str | None, environment: str, split: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    """The rows of a dataset, each with these fields; those that come with the environment for no name, or `shipped`."""
    source = str(data_directory(environment)) if name in (None, "", SHIPPED) else str(name)
    rows = load_dataset_rows(source, split)
    for number, row in enumerate(rows, 1):
        for field_name, field_type in fields.items():
            read_field(row, field_name, field_type, f"row {number} of {name or SHIPPED!r}")
    return rows


def fetch_dataset_directory(name: str) -> Path:
    """The files of a dataset of the hub, fetched once into its cache; blocking. Raises ConfigError as above."""

    def fetch() -> str:
        from huggingface_hub import snapshot_download

        return snapshot_download(name, repo_type="dataset")

    return Path(_fetch_from_hub(name, fetch))


def read_field(row: Mapping[str, Any], name: str, field_type: type[T], where: str, default: T | None = None) -> T:
    """A field of a row. Raises ConfigError that names row, field and what was expected; a field that is missing or
    null is `default` where that is given.
    """
    value = row.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, field_type) and not (isinstance(value, bool) and field_type is int):
        return value
    if name not in row:
        has = ", ".join(sorted(map(str, row))) or "nothing"
        raise ConfigError(f"{where}: the field {name!r} ({field_type.__name__}) is missing; the row has {has}")
    raise ConfigError(
        f"{where}: the field {name!r} must be {field_type.__name__}, not {type(value).__name__} {value!r:.60}"
    )


def _split_files(directory: Path, split: str) -> Sequence[Path]:
    files = [path for path in sorted(directory.rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    if not files:
        raise ConfigError(f"the dataset directory {str(directory)!r} has no {', '.join(_SUFFIXES)} file")
    with_split = [path for path in files if _split_name(path)]
    if not with_split:
        return files
    matching = [path for path in with_split if _split_name(path) == split]
    if not matching:
        splits = ", ".join(sorted({_split_name(path) for path in with_split}))
        raise ConfigError(f"the dataset directory {str(directory)!r} has no split {split!r}; it has {splits}")
    return matching


def _split_name(path: Path) -> str:
    name = path.stem.partition("-")[0]
    return name if name in _SPLITS else ""


def _read_file(path: Path) -> list[dict[str, Any]]:
    try:
        rows = _read_parquet(path) if path.suffix == ".parquet" else _read_json(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the dataset file {str(path)!r} cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ConfigError(f"row {number} of {str(path)!r} must be an object, not {type(row).__name__}")
    return rows


def _read_json(path: Path) -> list[Any]:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        try:
            whole = json.loads(text)
        except ValueError:
            pass  # an object a line, as many exporters write it
        else:
            return whole if isinstance(whole, list) else [whole]
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ConfigError(f"line {number} of {str(path)!r} is no JSON: {error}") from error
    return rows


def _read_parquet(path: Path) -> list[Any]:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"{str(path)!r} needs the package pyarrow: pip install 'hermes-exec[atropos]'") from error
    rows: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _load_from_hub(name: str, split: str) -> list[dict[str, Any]]:
    dataset, _, config = name.partition(":")

    def load() -> list[dict[str, Any]]:
        from datasets import load_dataset  # type: ignore[import-untyped]

        return [dict(row) for row in load_dataset(dataset, config or None, split=split)]

    return _fetch_from_hub(name, load)


def _fetch_from_hub(name: str, fetch: Callable[[], T]) -> T:
    advice = "name a local file or directory of the same format instead"
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise ConfigError(
            f"the dataset {name!r} is no file, and there is no package datasets to fetch it: "
            f"pip install 'hermes-exec[atropos]', or {advice}"
        ) from error
    if not constants.HF_HUB_OFFLINE:
        _check_hub(constants.ENDPOINT, name, advice)
    try:
        return fetch()
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [""]
        message = f"the dataset {name!r} cannot be had: {type(error).__name__}: {reason[0]}; {advice}"
        raise ConfigError(message) from error


def _check_hub(endpoint: str, name: str, advice: str) -> None:
    """Find out in a short time whether the hub is there: its own client tries for most of a minute."""
    try:
        # The address is that of the hub's client, and proxies are honoured as that does.
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S):
            pass
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"the dataset {name!r} is no file here, and {endpoint} cannot be reached ({reason}): {advice}, or set "
            "HF_HUB_OFFLINE=1 to take what its cache has"
        ) from error
