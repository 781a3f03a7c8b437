"""Merges runs into one directory: shards of several machines, or further samples of the same prompts."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from hermes_agent.parsers.json_text import dump
from hermes_batch.artifacts import ARTIFACTS
from hermes_batch.columns import decode_list
from hermes_batch.images import SCREENSHOTS
from hermes_batch.index import (
    INDEX,
    TRAJECTORIES,
    IndexWriter,
    Row,
    encode_line,
    is_record,
    iterate_index,
    make_index_row,
    parse_record,
)
from hermes_batch.parquet import write_parquet
from hermes_batch.report.report import write_report
from hermes_batch.settings import explain_write_errors, read_settings, write_facts
from hermes_batch.trajectories import Key, open_locked
from hermes_exec import ConfigError
from hermes_exec.private_files import make_directory, open_private

_SELECTION = frozenset({"ids", "shuffle", "offset", "limit", "shard", "workers", "base_url", "samples", "seed"})
"""The settings in which runs that are merged into one resumable run may differ."""
_OF_THE_FIRST = frozenset({"workers", "base_url"})
"""Those of them that the merged run has from its first run."""
_WITHOUT_FILES = (b'"screenshots": "[]"', b'"artifacts": "[]"')
_SAMPLE = re.compile(r"-\d+$")
logger = logging.getLogger(__name__)


@dataclass
class MergeResult:
    """The result of a merge.

    Attributes:
        out: The directory of the merged run.
        records: The number of its records.
        doubles: The records that were left out, because another one has their prompt and sample.
        renumbered: The records that became further samples of their prompts.
        resumable: Whether `batch resume` can continue the merged run.
        by_run: The records of each run.
    """

    out: Path
    records: int = 0
    doubles: int = 0
    renumbered: int = 0
    resumable: bool = False
    by_run: Counter[str] = field(default_factory=Counter)


class _Place(NamedTuple):
    """The place of a record: the number of its run, and the offset of its line."""

    run: int
    offset: int


def merge_runs(out: Path, runs: Sequence[Path], *, as_samples: bool = False) -> MergeResult:
    """Merge the records of runs, with their screenshots and artifacts, into the new directory `out`.

    Of several records with the same prompt and sample, the first trainable one stays, or else the first one. A warning
    is logged before anything is copied if the merged run cannot be resumed.

    Args:
        out: The directory of the merged run. It must not exist, or be empty.
        runs: The directories of the runs, in the order of their records.
        as_samples: Whether further trainable records with the same prompt and sample stay as further samples.

    Raises:
        ConfigError: If `out` has files, if a run is named twice or has no trajectories, if a process writes to a run,
            or if no run has a record.
        ExecError: If `out` cannot be written.
    """
    out, runs = Path(out), [Path(run) for run in runs]
    _check_directories(out, runs)
    result = MergeResult(out)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(open_locked(run))
        keys = _choose_records(runs, result, as_samples=as_samples)
        if not keys:
            raise ConfigError(f"nothing to merge: {', '.join(map(str, runs))} have no record")
        settings = [read_settings(run) for run in runs]
        config = _merge_configs(runs, settings)
        result.resumable = config is not None
        aside = out.with_name(f".{out.name}.new")
        with explain_write_errors(out):
            shutil.rmtree(aside, ignore_errors=True)
            make_directory(aside)
            try:
                _write_records(aside, runs, keys, result)
                _write_settings(aside, runs, settings, config, result)
                if out.exists():
                    out.rmdir()
                aside.rename(out)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    with explain_write_errors(out):
        write_report(out)
        write_parquet(out)
    return result


def _check_directories(out: Path, runs: Sequence[Path]) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out: {out} exists and is not an empty directory; give a new one")
    counts = Counter(run.resolve() for run in runs)
    if not runs or max(counts.values()) > 1:
        raise ConfigError("give each run once" if runs else "give the directories of the runs to merge")


def _choose_records(runs: Sequence[Path], result: MergeResult, *, as_samples: bool) -> dict[_Place, Key]:
    """Return the records of the merged run with their keys."""
    chosen: dict[Key, tuple[_Place, bool]] = {}
    further: list[tuple[_Place, str]] = []
    last_sample: Counter[str] = Counter()
    for number, run in enumerate(runs):
        for row in iterate_index(run):
            if not is_record(row):
                continue
            key, place = (str(row["group"]), int(row["sample"])), _Place(number, row["offset"])
            last_sample[key[0]] = max(last_sample[key[0]], key[1])
            is_trainable = bool(row.get("trainable"))
            if key not in chosen or (is_trainable and not chosen[key][1]):
                result.doubles += key in chosen
                chosen[key] = place, is_trainable
            elif as_samples and is_trainable:
                further.append((place, key[0]))
            else:
                result.doubles += 1
    keys = {place: key for key, (place, _) in chosen.items()}
    for place, group in further:
        last_sample[group] += 1
        keys[place] = group, last_sample[group]
    result.renumbered = len(further)
    return keys


def _write_records(out: Path, runs: Sequence[Path], keys: dict[_Place, Key], result: MergeResult) -> None:
    index = IndexWriter.create(out / INDEX)
    try:
        with open(out / TRAJECTORIES, "wb", opener=open_private) as file:
            for number, run in enumerate(runs):
                with (run / TRAJECTORIES).open("rb") as lines:
                    for row in iterate_index(run):
                        key = keys.get(_Place(number, row["offset"]))
                        if key is None:
                            continue
                        lines.seek(row["offset"])
                        line, row = _move_record(lines.read(row["length"]), row, key, run, out)
                        index.append({**row, "offset": file.tell(), "length": len(line)})
                        file.write(line)
                        result.records += 1
                        result.by_run[str(run)] += 1
    finally:
        index.close()
    os.utime(out / INDEX)  # newer than the trajectories


def _move_record(line: bytes, row: Row, key: Key, run: Path, out: Path) -> tuple[bytes, Row]:
    """Return the line of a record and its row of the index, and copy the files of the record."""
    is_same = key == (row["group"], row["sample"]) and row.get("current", True) and line.endswith(b"\n")
    if is_same and all(text in line for text in _WITHOUT_FILES):
        return line, row
    record, _ = parse_record(line)
    if record is None:
        raise ConfigError(f"{run} was changed while it was merged; merge it again")
    record = {**record, "group": key[0], "sample": key[1]}
    _move_screenshots(record, run, out)
    _move_artifacts(record, run, out)
    line = encode_line(record)
    return line, make_index_row(record, 0, len(line))


def _move_screenshots(record: dict[str, Any], run: Path, out: Path) -> None:
    """Copy the screenshots of a record to names that no other record of the merged run has."""
    paths: dict[str, str] = {}
    screenshots = [each for each in decode_list(record, "screenshots") if isinstance(each, dict)]
    for number, screenshot in enumerate(screenshots, 1):
        path = str(screenshot.get("path", ""))
        new = f"{SCREENSHOTS}/{record['group']}-{record['sample']}-{number}{PurePosixPath(path).suffix}"
        if _copy(run, path, out, new, SCREENSHOTS):
            paths[path] = screenshot["path"] = new
    if not paths:
        return
    messages = decode_list(record, "messages")
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            address = part.get("image_url") if isinstance(part, dict) else None
            if isinstance(address, dict) and address.get("url") in paths:
                address["url"] = paths[address["url"]]
    record |= {"screenshots": dump(screenshots), "messages": dump(messages)}


def _move_artifacts(record: dict[str, Any], run: Path, out: Path) -> None:
    """Copy the artifacts of a record. The name of their directory ends with the number of the sample."""
    moved = []
    for path in decode_list(record, "artifacts"):
        parts = str(path).split("/")
        if len(parts) > 2:
            parts[1] = _SAMPLE.sub(f"-{record['sample']}", parts[1])
        new = "/".join(parts)
        moved.append(new if _copy(run, str(path), out, new, ARTIFACTS) else path)
    record["artifacts"] = dump(moved)


def _copy(run: Path, path: str, out: Path, new: str, directory: str) -> bool:
    """Copy a file of a record. Return False if its path leads elsewhere or to nothing."""
    parts = path.split("/")
    source = run / path
    if parts[0] != directory or {"", ".", ".."} & {*parts} or source.is_symlink() or not source.is_file():
        return False
    if not source.resolve().is_relative_to((run / directory).resolve()):
        return False
    target = out / new
    make_directory(target.parent)
    with source.open("rb") as original, open(target, "wb", opener=open_private) as copy:
        shutil.copyfileobj(original, copy)
    return True


def _write_settings(
    out: Path,
    runs: Sequence[Path],
    settings: Sequence[dict[str, Any]],
    config: dict[str, Any] | None,
    result: MergeResult,
) -> None:
    """Write `run.json`."""
    first = settings[0]
    prompts = sum(int(each.get("prompts") or 0) for each in settings) - result.doubles
    facts: dict[str, Any] = {name: first.get(name) for name in ("model", "backend", "image", "embedded")}
    facts |= {
        "prompts": max(prompts, result.records),
        "records": result.records,
        "seconds": round(sum(float(each.get("seconds") or 0.0) for each in settings), 3),
        "merged": [str(run.resolve()) for run in runs],
    }
    if config is not None:
        facts |= {"config": config, "again": first.get("again", []), "until_solved": config.get("until_solved")}
    write_facts(out, facts)


def _merge_configs(runs: Sequence[Path], settings: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the settings of a run with the prompts of all runs. None if there are none: the settings differ otherwise.
    Then log a warning.
    """
    configs = [config for each in settings if isinstance(config := each.get("config"), dict)]
    if len(configs) < len(settings):
        without = (
            str(run) for run, each in zip(runs, settings, strict=True) if not isinstance(each.get("config"), dict)
        )
        logger.warning("the merged run cannot be resumed: %s has no settings to continue with", next(without))
        return None
    first = configs[0]
    differing = {name for config in configs for name in first.keys() | config if config.get(name) != first.get(name)}
    if others := sorted(differing - _SELECTION):
        logger.warning("the merged run cannot be resumed: the runs differ in %s", ", ".join(others))
        return None
    merged = {name: value for name, value in first.items() if name not in differing - _OF_THE_FIRST}
    return merged | {"samples": max(int(config.get("samples", 1)) for config in configs)}
