"""`trajectories.parquet`, the typed table of a run, and the records of runs as an Arrow table."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.from_thread
import anyio.to_thread

from hermes_batch.index import TRAJECTORIES
from hermes_batch.settings import explain_write_errors
from hermes_batch.trajectories import read_records
from hermes_exec.errors import ConfigError
from hermes_exec.private_files import open_private, restrict_to_owner

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PARQUET = "trajectories.parquet"
COLUMNS_VERSION = 3
"""The version of the columns. It is increased when `record_schema` changes, so that tables are made again."""
_SOURCE = b"hermes_batch.source"
"""The key of the file's metadata that holds the state of the trajectories from which it was made."""
_END = struct.Struct("<I4s")
"""The end of a Parquet file: the length of the metadata before it, and a mark."""
_MARK = b"PAR1"


def load(out: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pa.Table:
    """Return the records of a run, or of several runs together, as an Arrow table.

    Each column has one type (`hermes_batch.schema.record_schema`). `messages` is a list of messages with the fields
    `role`, `content`, `reasoning`, `tool_calls`, `tool_call_id` and `extra`; `hermes_batch.to_openai_messages` returns
    them in OpenAI form.

    Raises:
        ConfigError: If a directory has no trajectories, or pyarrow is not installed.
    """
    from hermes_batch.schema import concatenate

    outs = [out] if isinstance(out, str | os.PathLike) else list(out)
    return concatenate([_read_table(Path(each)) for each in outs])


async def update_parquet(out: Path) -> None:
    """Call `write_parquet` in a thread. Cancellation ends it, and leaves no file."""
    await anyio.to_thread.run_sync(partial(write_parquet, out, on_batch=anyio.from_thread.check_cancelled))


def write_parquet(out: Path, *, on_batch: Callable[[], None] = lambda: None) -> Path | None:
    """Write the records of a run to `trajectories.parquet`, in bounded memory, and return its path.

    Nothing is done if the file is up to date. Without pyarrow there is no file, and None is returned.

    Args:
        out: The directory of the run.
        on_batch: Called after each batch of records. If it raises, there is no file.

    Raises:
        ConfigError: If there are no trajectories.
        ExecError: If the file cannot be written.
    """
    if find_spec("pyarrow") is None:
        return None
    path, aside = out / PARQUET, out / f".{PARQUET}.new"
    with explain_write_errors(out):
        source = _source(out)
        if _is_made_from(path, source):
            restrict_to_owner(path)
            return path
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        from hermes_batch.schema import make_batches, record_schema

        schema = record_schema().with_metadata({_SOURCE: source})
        try:
            with (
                open(aside, "wb", opener=open_private) as file,
                pq.ParquetWriter(file, schema, compression="zstd") as writer,
            ):
                for batch in make_batches(read_records(out)):
                    writer.write_batch(batch)
                    on_batch()
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    return path


def _read_table(out: Path) -> pa.Table:
    import pyarrow.parquet as pq

    from hermes_batch.schema import make_table

    if (out / TRAJECTORIES).exists() and _is_made_from(out / PARQUET, _source(out)):
        return pq.read_table(out / PARQUET).replace_schema_metadata(None)
    return make_table(read_records(out))


def _source(out: Path) -> bytes:
    """Return the version of the columns and the state of the trajectories from which a Parquet file is made."""
    try:
        facts = (out / TRAJECTORIES).stat()
    except FileNotFoundError as error:
        raise ConfigError(f"{out} has no {TRAJECTORIES}") from error
    return json.dumps([COLUMNS_VERSION, facts.st_size, facts.st_mtime_ns]).encode()


def _is_made_from(path: Path, source: bytes) -> bool:
    """Return whether a Parquet file was made from this state of the trajectories, in the columns of this version.

    The metadata at its end are searched without pyarrow: its import would take a third of the time of the command that
    resumes a small finished run.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(-_END.size, os.SEEK_END)
            length, mark = _END.unpack(file.read(_END.size))
            file.seek(max(0, end - length))
            metadata = file.read(length)
    except OSError:
        return False
    return mark == _MARK and _SOURCE in metadata and source in metadata
