"""Parquet: the records with all their columns, in the typed schema of `hermes_batch.load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes_agent.messages import Message
from hermes_agent.parsers.json_text import dump
from hermes_agent.trajectories.sharegpt import sharegpt
from hermes_batch.columns import decode_list
from hermes_batch.export.example import TrainingExample
from hermes_batch.export.images import image_url, is_link, read_image
from hermes_batch.export.options import ExportOptions
from hermes_batch.export.writers import DataSetWriter
from hermes_batch.index import Row
from hermes_batch.schema import make_batches, record_schema
from hermes_exec.private_files import make_directory, open_private

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

IMAGES = "images"
_ROWS = 200
_CHARACTERS = 8 << 20


class RenderedRow(NamedTuple):
    """A record, and its images by their paths."""

    record: Row
    images: Mapping[str, bytes]


class ParquetWriter(DataSetWriter[RenderedRow]):
    """Writes `SPLIT.parquet`. Images are files in `images/`; messages and `screenshots` have their paths."""

    def __init__(self, out: Path, options: ExportOptions) -> None:
        super().__init__(out, options)
        self._tables: dict[str, _Table] = {}

    def render(self, example: TrainingExample) -> RenderedRow:
        """Return the row of a record."""
        images: dict[str, bytes] = {}
        paths: dict[str, str] = {}

        def copy_image(path: str) -> str:
            if path not in paths:
                paths[path] = f"{IMAGES}/{example.name}-{len(paths) + 1}.{path.rpartition('.')[2]}"
                images[paths[path]] = read_image(example.run, path)
            return paths[path]

        messages = example.clean_messages(reasoning=self._options.reasoning, signatures=True)
        messages = [_replace_images(message, copy_image) for message in messages]
        shots = decode_list(example.record, "screenshots")
        shots = [{**shot, "path": copy_image(str(shot.get("path")))} for shot in shots if isinstance(shot, dict)]
        row = {**example.record, "messages": dump(messages), "screenshots": dump(shots)}
        if not self._options.reasoning:
            row["conversations"] = sharegpt(messages, example.tools)
        return RenderedRow(row, images)

    def write(self, split: str, example: TrainingExample, rendering: RenderedRow) -> None:
        """Write a row and its images."""
        if split not in self._tables:
            self._tables[split] = _Table(self._out / self.data_files(split))
        self._tables[split].add(rendering.record)
        if rendering.images:
            make_directory(self._out / IMAGES)
        for name, content in rendering.images.items():
            with open(self._out / name, "xb", opener=open_private) as file:
                file.write(content)

    def data_files(self, split: str) -> str:
        """Return the name of the split's file."""
        return f"{split}.parquet"

    def close(self) -> None:
        """Write the last rows and the ends of the files."""
        for table in self._tables.values():
            table.close()


class _Table:
    """A Parquet file in progress, with some rows in memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._file = open(path, "wb", opener=open_private)  # noqa: SIM115 - kept open
        self._writer: pq.ParquetWriter = pq.ParquetWriter(self._file, record_schema(), compression="zstd")
        self._rows: list[Row] = []
        self._characters = 0

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self._characters += len(row["messages"]) + len(str(row.get("tools", "")))
        if len(self._rows) >= _ROWS or self._characters >= _CHARACTERS:
            self._write_rows()

    def close(self) -> None:
        self._write_rows()
        self._writer.close()
        self._file.close()

    def _write_rows(self) -> None:
        for batch in make_batches(self._rows):
            self._writer.write_batch(batch)
        self._rows, self._characters = [], 0


def _replace_images(message: Message, copy_image: Callable[[str], str]) -> Message:
    """Return a message with the paths of its images' copies."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        if part.get("type") != "image_url" or is_link(url := image_url(part)):
            parts.append(part)
        else:
            parts.append({**part, "image_url": {**part["image_url"], "url": copy_image(url)}})
    return {**message, "content": parts}
