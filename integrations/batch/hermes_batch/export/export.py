"""Exports the records of runs as a data set in a format that trainers and viewers read."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hermes_batch.export.atif import ATIFWriter
from hermes_batch.export.card import data_set_card
from hermes_batch.export.example import FormatProblem, TrainingExample
from hermes_batch.export.openai import OpenAIWriter
from hermes_batch.export.options import ExportOptions
from hermes_batch.export.selection import (
    Choice,
    LeftOut,
    RunFile,
    Unreadable,
    filter_record,
    find_runs,
    iterate_examples,
)
from hermes_batch.export.sharegpt import ShareGPTWriter
from hermes_batch.export.traces import TraceWriter
from hermes_batch.export.writers import DataSetWriter
from hermes_batch.index import encode_line
from hermes_exec.errors import ConfigError, ExecError
from hermes_exec.private_files import make_directory, open_private

LEFT_OUT = "left_out.jsonl"
SUMMARY = "export.json"
CARD = "README.md"
_WRITERS: Mapping[str, type[DataSetWriter[Any]]] = {
    "openai": OpenAIWriter,
    "sharegpt": ShareGPTWriter,
    "atif": ATIFWriter,
    "hf-trace": TraceWriter,
}


@dataclass(frozen=True)
class ExportResult:
    """The sums of an export, which are also in `export.json`.

    Attributes:
        out: The directory of the data set.
        to: The format.
        read: Records that were read.
        written: Records that were written.
        prompts: Prompts (groups) with a written record.
        tokens: Tokens of the written records, each counted once.
        estimated: Written records whose tokens are estimated, because their endpoint reported none.
        splits: Written records by split.
        left_out: Records that were not written, by reason. `left_out.jsonl` has each of them, if a record was written.
        details: For each reason, the explanation of the first such record.
    """

    out: Path
    to: str
    read: int
    written: int
    prompts: int
    tokens: int
    estimated: int
    splits: Mapping[str, int]
    left_out: Mapping[str, int]
    details: Mapping[str, str]


def export_records(
    outs: Path | str | Iterable[Path | str],
    *,
    to: str,
    out: Path | str,
    only: Sequence[str] = (),
    min_reward: float | None = None,
    per_prompt: int | str | None = None,
    max_tokens: int | None = None,
    dedupe: str | None = None,
    failed_calls: bool = True,
    reasoning: bool = True,
    split: Mapping[str, float] | None = None,
    include_untrainable: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the records of runs as a data set.

    The directory of the data set is complete or not there: it is written aside and renamed at the end. Without a single
    record there is none, and an earlier export stays. Records of a run in progress are those that it has when the
    export begins.

    Args:
        outs: The directories of the runs.
        to: `openai`, `sharegpt`, `atif`, `hf-trace` or `parquet`.
        out: The directory of the data set. It must be new or empty.
        only: The outcomes to export: `solved`, `unsolved`, `unchecked`, `unscored`. Empty: all.
        min_reward: The least reward. Records without one are left out.
        per_prompt: How many records of a prompt to export, from the first sample. `shortest`: the one with the fewest
            tokens. `best`: the one with the highest reward, and of these the shortest.
        max_tokens: The most tokens of a conversation. If the endpoint reported none, they are estimated: one for three
            bytes.
        dedupe: `prompt`: of records with the same prompt, in whatever group, export one. `first-call`: of records of a
            prompt that begin with the same call, export one.
        failed_calls: Whether to export records with failed calls.
        reasoning: Whether to write the model's thinking.
        split: Shares of splits, such as `{"train": 0.95}`. The rest is `test`. All records of a prompt are in one
            split, which depends only on the prompt. None: all are in `train`.
        include_untrainable: Whether to export records that do not measure the model.
        overwrite: Whether to replace an earlier export.

    Raises:
        ConfigError: If an argument is wrong, there is no run, or `out` has files.
        ExecError: If the data set cannot be written.
    """
    options = ExportOptions.of(
        to,
        only=only,
        min_reward=min_reward,
        per_prompt=per_prompt,
        max_tokens=max_tokens,
        dedupe=dedupe,
        failed_calls=failed_calls,
        reasoning=reasoning,
        split=split,
        include_untrainable=include_untrainable,
    )
    writer_type = _find_writer(to)
    runs = find_runs(map(Path, [outs] if isinstance(outs, str | Path) else outs))
    with _new_directory(Path(out), overwrite=overwrite) as directory:
        writer = writer_type(directory, options)
        try:
            export = _Export(Path(out), directory, writer, options)
            export.run(runs)
        finally:
            writer.close()
        return export.finish()


def _find_writer(to: str) -> type[DataSetWriter[Any]]:
    """Return the writer of a format.

    Raises:
        ConfigError: If a package that it needs is not installed.
    """
    if to == "parquet":
        from hermes_batch.export.parquet import ParquetWriter

        return ParquetWriter
    return _WRITERS[to]


class _Export:
    """One export in progress."""

    def __init__(self, out: Path, directory: Path, writer: DataSetWriter[Any], options: ExportOptions) -> None:
        self._out, self._directory, self._writer, self._options = out, directory, writer, options
        self._left_out: Counter[str] = Counter()
        self._details: dict[str, str] = {}
        self._splits: Counter[str] = Counter()
        self._groups: set[str] = set()
        self._models: set[str] = set()
        self._tokens = self._estimated = 0

    def run(self, runs: Sequence[RunFile]) -> None:
        """Write all records, and the reasons of those that are left out."""
        choice = Choice.of(iterate_examples(runs), self._options, self._reject)
        with open(self._directory / LEFT_OUT, "wb", opener=open_private) as file:
            for example in iterate_examples(runs):
                left_out = self._write(example, choice)
                if left_out is not None:
                    self._left_out[left_out.reason] += 1
                    self._details.setdefault(left_out.reason, left_out.detail)
                    file.write(encode_line(_describe(example, left_out)))

    def finish(self) -> ExportResult:
        """Return the sums, and write them and the README if there is a record."""
        written = self._splits.total()
        result = ExportResult(
            out=self._out,
            to=self._options.to,
            read=written + self._left_out.total(),
            written=written,
            prompts=len(self._groups),
            tokens=self._tokens,
            estimated=self._estimated,
            splits=dict(sorted(self._splits.items())),
            left_out=dict(self._left_out.most_common()),
            details=self._details,
        )
        if not written:
            return result
        facts = {**asdict(result), "out": str(self._out), "options": asdict(self._options)}
        _write(self._directory / SUMMARY, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
        card = data_set_card(
            title=self._out.resolve().name,
            to=self._options.to,
            files={name: self._writer.data_files(name) for name in result.splits},
            features=self._writer.features,
            counts=result.splits,
            models=sorted(self._models),
        )
        _write(self._directory / CARD, card)
        return result

    def _write(self, example: TrainingExample | Unreadable, choice: Choice | None) -> LeftOut | None:
        """Write a record, or return why it is left out."""
        if isinstance(example, Unreadable):
            return LeftOut("unreadable", f"the line at byte {example.offset} is not a record")
        left_out = filter_record(example, self._options) or (None if choice is None else choice.reject(example))
        if left_out is not None:
            return left_out
        try:
            rendering = self._writer.render(example)
        except FormatProblem as problem:
            return LeftOut("format", str(problem))
        split = self._options.split_of(example.group)
        self._writer.write(split, example, rendering)
        self._splits[split] += 1
        self._groups.add(example.group)
        self._models |= {example.model} - {""}
        self._tokens += example.tokens
        self._estimated += not example.reported_tokens
        return None

    def _reject(self, example: TrainingExample) -> LeftOut | None:
        """Return why a record is left out for its own sake, or None."""
        left_out = filter_record(example, self._options)
        if left_out is not None:
            return left_out
        try:
            self._writer.render(example)
        except FormatProblem as problem:
            return LeftOut("format", str(problem))
        return None


def _describe(example: TrainingExample | Unreadable, left_out: LeftOut) -> dict[str, Any]:
    """Return the line of a record that is left out."""
    names: dict[str, Any] = {"id": "", "group": "", "sample": -1}
    if isinstance(example, TrainingExample):
        names = {"id": example.id, "group": example.group, "sample": example.number}
    return {"run": str(example.run), **names, "reason": left_out.reason, "detail": left_out.detail}


@contextmanager
def _new_directory(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a new directory that takes the place of `out` at the end. It is removed if the block raises, or writes no
    `export.json`.

    Raises:
        ConfigError: If `out` has files and is no export, or `overwrite` is not set.
        ExecError: If it cannot be written.
    """
    target = out.resolve()
    _check_target(out, target, overwrite=overwrite)
    try:
        make_directory(target.parent)
        aside = Path(mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield aside
            if not (aside / SUMMARY).exists():
                shutil.rmtree(aside)
                return
            if target.exists():
                shutil.rmtree(target)
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    except OSError as error:
        raise ExecError(
            f"cannot write to {out}: {error.strerror or error}; fix that and run the export again"
        ) from error


def _check_target(out: Path, target: Path, *, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"out: {out} is a file; give a new directory")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not (target / SUMMARY).is_file():
        raise ConfigError(f"out: {out} has files that are not an export; give a new directory")
    if not overwrite:
        raise ConfigError(f"out: {out} has an export; give another directory, or --overwrite (overwrite=True)")


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="replace", opener=open_private) as file:
        file.write(text)
