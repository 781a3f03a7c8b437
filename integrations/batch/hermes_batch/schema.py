"""The Arrow schema of records: one type for each column, and the conversion of records to it. It needs pyarrow."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hermes_agent.models.chat_answer import well_formed
from hermes_agent.parsers.json_text import dump
from hermes_batch.fixed_messages import FixedMessage, to_fixed_message
from hermes_exec.errors import ConfigError

try:
    import pyarrow as pa  # type: ignore[import-untyped]
except ImportError as error:
    raise ConfigError("tables of records need pyarrow: pip install 'hermes-exec[batch]'") from error

_BATCH_ROWS = 1000
_BATCH_CHARACTERS = 8 << 20
_LARGEST_INTEGER = (1 << 63) - 1
_NULLABLE = frozenset({"content", "reasoning", "tool_call_id", "error_kind", "reward"})
"""The fields that may be null. In a message, `tool_call_id` is; in a call or a screenshot, it is always there."""


@cache
def record_schema() -> pa.Schema:
    """Return the schema of records.

    `messages` have the fields of `FixedMessage`. Columns of any structure (`tools`, `tool_stats`, `tool_error_counts`,
    `sampling`, `reward_info`, `task_metadata`) and `tokens` are JSON text, as in `trajectories.jsonl`.
    """
    text, integer, number, boolean = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    call = _struct(id=text, name=text, arguments=text)
    message = _struct(role=text, content=text, reasoning=text, tool_calls=pa.list_(call), tool_call_id=text, extra=text)
    call_facts = _struct(
        turn=integer, tool_call_id=text, name=text, state=text, ok=boolean, error_kind=text, duration_s=number
    )
    usage = _struct(
        prompt_tokens=integer,
        completion_tokens=integer,
        reasoning_tokens=integer,
        cached_tokens=integer,
        cost=number,
        finish_reason=text,
    )
    timings = _struct(queue_s=number, setup_s=number, model_s=number, tools_s=number, check_s=number)
    columns: dict[str, pa.DataType] = {
        "group": text,
        "sample": integer,
        "prompt_index": integer,
        "id": text,
        "messages": pa.list_(message),
        "tools": text,
        "solved": text,
        "reward": number,
        "reward_info": text,
        "trainable": boolean,
        "finish": text,
        "cause": text,
        "completed": boolean,
        "partial": boolean,
        "conversations": pa.list_(_struct(**{"from": text, "value": text})),
        "exportable": boolean,
        "export_problem": text,
        "check": _struct(exit_code=integer, timed_out=boolean, output=text),
        "errors": pa.list_(_struct(turn=integer, where=text, kind=text, message=text)),
        "calls": pa.list_(call_facts),
        "tool_stats": text,
        "tool_error_counts": text,
        "unknown_tools": pa.list_(text),
        "screenshots": pa.list_(_struct(path=text, tool_call_id=text)),
        "artifacts": pa.list_(text),
        "turns": integer,
        "tool_calls": integer,
        "api_calls": integer,
        "usage": pa.list_(usage),
        "tokens": text,
        "prompt_tokens": integer,
        "completion_tokens": integer,
        "reasoning_tokens": integer,
        "cached_tokens": integer,
        "cost": number,
        "seconds": number,
        "timings": timings,
        "started": text,
        "ended": text,
        "attempts": integer,
        "sampling": text,
        "compacted": boolean,
        "toolsets_used": pa.list_(text),
        "program": text,
        "program_exit_code": integer,
        "program_output": text,
        "roots": integer,
        "sequences": integer,
        "backend": text,
        "image": text,
        "isolation": text,
        "sandbox": text,
        "version": text,
        "metadata": _struct(batch_num=integer, timestamp=text, model=text),
        "task_digest": text,
        "task_metadata": text,
    }
    return pa.schema(columns.items())


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


def make_batches(records: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield records in batches of bounded size, with the types of `record_schema`.

    Values of another type, which records of other programs may have, are converted: to JSON text, to 0, or to an empty
    list.
    """
    rows: list[dict[str, Any]] = []
    characters = 0
    for record in records:
        rows.append(typed_row(record))
        characters += len(str(record.get("messages", ""))) + len(str(record.get("tools", "")))
        if len(rows) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield pa.RecordBatch.from_pylist(rows, schema=record_schema())
            rows, characters = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=record_schema())


def make_table(records: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return the table of records, with the types of `record_schema`."""
    return pa.Table.from_batches(make_batches(records), record_schema())


def concatenate(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of records as one table."""
    return pa.concat_tables(tables) if tables else record_schema().empty_table()


def typed_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the types of `record_schema`."""
    return {name: convert(record.get(name)) for name, convert in _column_converters().items()}


_Convert = Callable[[Any], Any]


@cache
def _column_converters() -> dict[str, _Convert]:
    return {field.name: _column_converter(field) for field in record_schema()}


def _column_converter(field: pa.Field) -> _Convert:
    convert = _converter(field.type, nullable=field.name in _NULLABLE)
    if field.name == "messages":
        return lambda value: convert(_fixed_messages(_decode(value)))
    if pa.types.is_string(field.type):
        return convert
    return lambda value: convert(_decode(value))


def _fixed_messages(value: object) -> list[FixedMessage]:
    return [to_fixed_message(each) for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _decode(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return the value of JSON text. Other values stay as they are, and other text becomes None."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _converter(data_type: pa.DataType, *, nullable: bool) -> _Convert:
    """Return the function that gives any value this type."""
    if pa.types.is_list(data_type):
        convert = _converter(data_type.value_type, nullable=False)
        return lambda value: [convert(each) for each in value] if isinstance(value, list) else []
    if pa.types.is_struct(data_type):
        fields = {field.name: _converter(field.type, nullable=field.name in _NULLABLE) for field in data_type}
        return lambda value: _convert_struct(value if isinstance(value, dict) else {}, fields)
    scalar = _SCALARS[str(data_type)]
    return (lambda value: None if value is None else scalar(value)) if nullable else scalar


def _convert_struct(value: Mapping[str, Any], fields: Mapping[str, _Convert]) -> dict[str, Any]:
    return {name: convert(value.get(name)) for name, convert in fields.items()}


def _to_text(value: object) -> str:
    return well_formed(value) if isinstance(value, str) else "" if value is None else well_formed(dump(value))


def _to_integer(value: object) -> int:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return max(-_LARGEST_INTEGER, min(int(value), _LARGEST_INTEGER))


def _to_number(value: object) -> float:
    if not isinstance(value, int | float):
        return 0.0
    try:
        return float(value)
    except OverflowError:
        return 0.0


_SCALARS: Mapping[str, _Convert] = {"string": _to_text, "int64": _to_integer, "double": _to_number, "bool": bool}
