"""Files of a data set: one line a record, or one file a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

from hermes_batch.export.example import TrainingExample
from hermes_batch.export.options import ExportOptions
from hermes_batch.index import encode_line
from hermes_exec.private_files import make_directory, open_private

_FILES_PER_DIRECTORY = 1000
"""Hubs refuse or are slow with directories of more than some thousand files."""


_Rendering = TypeVar("_Rendering")


class DataSetWriter(ABC, Generic[_Rendering]):
    """Writes records in one format.

    Args:
        out: The directory of the data set.
        options: The settings of the export.
    """

    features: ClassVar[Mapping[str, object] | None] = None
    """The types of the columns for `datasets`, if they are not plain from the file."""

    def __init__(self, out: Path, options: ExportOptions) -> None:
        self._out, self._options = out, options

    @abstractmethod
    def render(self, example: TrainingExample) -> _Rendering:
        """Return the record as `write` needs it.

        Raises:
            FormatProblem: If the format cannot hold it.
        """

    @abstractmethod
    def write(self, split: str, example: TrainingExample, rendering: _Rendering) -> None:
        """Write what `render` returned."""

    @abstractmethod
    def data_files(self, split: str) -> str:
        """Return the pattern of the files of a split, relative to the directory."""

    @abstractmethod
    def close(self) -> None:
        """Finish the files."""


class LineWriter(DataSetWriter[Mapping[str, object]]):
    """Writes `SPLIT.jsonl`, one line for each record."""

    def __init__(self, out: Path, options: ExportOptions) -> None:
        super().__init__(out, options)
        self._files: dict[str, BinaryIO] = {}

    def write(self, split: str, example: TrainingExample, rendering: Mapping[str, object]) -> None:
        """Write a line."""
        if split not in self._files:
            self._files[split] = open(self._out / f"{split}.jsonl", "wb", opener=open_private)  # noqa: SIM115 - kept
        self._files[split].write(encode_line(rendering))

    def data_files(self, split: str) -> str:
        """Return the name of the split's file."""
        return f"{split}.jsonl"

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class RenderedFile(NamedTuple):
    """The content of a record's file, and the images beside it by their names."""

    content: bytes
    images: Mapping[str, bytes]


class FileWriter(DataSetWriter[RenderedFile]):
    """Writes `SPLIT/0000/NAME`, one file for each record, with its images beside it."""

    suffix: ClassVar[str]

    def __init__(self, out: Path, options: ExportOptions) -> None:
        super().__init__(out, options)
        self._written: dict[str, int] = {}

    def write(self, split: str, example: TrainingExample, rendering: RenderedFile) -> None:
        """Write the files of a record."""
        number = self._written.get(split, 0)
        self._written[split] = number + 1
        directory = self._out / split / f"{number // _FILES_PER_DIRECTORY:04}"
        make_directory(directory)
        for name, content in {f"{example.name}{self.suffix}": rendering.content, **rendering.images}.items():
            with open(directory / name, "xb", opener=open_private) as file:
                file.write(content)

    def data_files(self, split: str) -> str:
        """Return the pattern of the split's files."""
        return f"{split}/*/*{self.suffix}"

    def close(self) -> None:
        """Do nothing: each file is closed when it is written."""
