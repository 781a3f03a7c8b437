"""Dataset rows, loaded from local files or from the Hugging Face Hub and validated."""

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
"""The name of the small task set that each environment ships with."""

T = TypeVar("T")
_SUFFIXES = (".jsonl", ".json", ".parquet")
_SPLITS = ("train", "test", "validation", "valid", "dev", "eval")
_HUB_TIMEOUT_S = 5.0
_DATA = Path(__file__).resolve().parent / "data"


def data_directory(environment: str) -> Path:
    """Return the directory of the tasks that an environment ships with."""
    return _DATA / environment


def load_dataset_rows(name_or_path: str, split: str = "train") -> list[dict[str, Any]]:
    """Return all rows of a dataset. Blocks.

    A local directory whose files are named by split (`test.jsonl`, `test-00000-of-00001.parquet`) yields only the rows
    of `split`. A hub that does not answer fails after five seconds.

    Args:
        name_or_path: A local `.jsonl`, `.json` (a list, or one object per line) or `.parquet` file, a directory of such
            files, or the name of a dataset on the hub (`owner/name` or `owner/name:config`), which needs the package
            `datasets`.
        split: The split to load.

    Raises:
        ConfigError: If there are no rows; the message names the remedy.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        rows = [row for file in _split_files(path, split) for row in _read_file(file)]
    elif path.is_file():
        rows = _read_file(path)
    elif path.suffix in _SUFFIXES or name_or_path.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"the dataset {name_or_path!r}: no such file or directory")
    else:
        rows = _load_from_hub(name_or_path, split)
    if not rows:
        raise ConfigError(f"the dataset {name_or_path!r} (split {split!r}) has no rows")
    return rows


def load_items(name: str | None, environment: str, split: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the rows of a dataset and check that each has these fields. Without a name, or with `shipped`, return the
    rows that the environment ships with.
    """
    source = str(data_directory(environment)) if name in (None, "", SHIPPED) else str(name)
    rows = load_dataset_rows(source, split)
    for number, row in enumerate(rows, 1):
        for field_name, field_type in fields.items():
            read_field(row, field_name, field_type, f"row {number} of {name or SHIPPED!r}")
    return rows


def fetch_dataset_directory(name: str) -> Path:
    """Download the files of a hub dataset into the hub's cache, once, and return their directory. Blocks.

    Raises:
        ConfigError: If the dataset cannot be downloaded.
    """

    def fetch() -> str:
        from huggingface_hub import snapshot_download

        return snapshot_download(name, repo_type="dataset")

    return Path(_fetch_from_hub(name, fetch))


def read_field(row: Mapping[str, Any], name: str, field_type: type[T], where: str, default: T | None = None) -> T:
    """Return a field of a row. A field that is missing or null returns `default` if it is given.

    Raises:
        ConfigError: If the field is missing or has another type; the message names the row, the field and the expected
            type.
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
            pass  # one object per line, as many exporters write it
        else:
            return whole if isinstance(whole, list) else [whole]
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ConfigError(f"line {number} of {str(path)!r} is not JSON: {error}") from error
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
            f"the dataset {name!r} is not a file, and the package datasets, which could download it, is missing: "
            f"pip install 'hermes-exec[atropos]', or {advice}"
        ) from error
    if not constants.HF_HUB_OFFLINE:
        _check_hub(constants.ENDPOINT, name, advice)
    try:
        return fetch()
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [""]
        message = f"cannot download the dataset {name!r}: {type(error).__name__}: {reason[0]}; {advice}"
        raise ConfigError(message) from error


def _check_hub(endpoint: str, name: str, advice: str) -> None:
    """Check quickly whether the hub can be reached, because its own client retries for most of a minute."""
    try:
        # Uses the endpoint of the hub's client and honours proxies like the client.
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S):
            pass
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"the dataset {name!r} is not a local file, and {endpoint} cannot be reached ({reason}): {advice}, or set "
            "HF_HUB_OFFLINE=1 to use the cached copy"
        ) from error
