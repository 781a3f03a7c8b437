"""A reader for trace files: the calls with their phases, and the events of the pool."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from hermes_exec.channel.frames import FrameType
from hermes_exec.channel.trace import TracedFrame
from hermes_exec.errors import ConfigError
from hermes_exec.tracing.calls import Call, Calls

MAX_LINE_CHARS = 1 << 20
MAX_NAME_CHARS = 256
MAX_NUMBER = 1e15


@dataclass(slots=True)
class TraceRecord:
    """The content of a trace. Times are seconds since its start."""

    began_at: float
    calls: list[Call] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    frames: int = 0


def read_trace(path: str | os.PathLike[str]) -> TraceRecord:
    """Read a file that `trace=` or `--trace` wrote. An incomplete last line is ignored.

    Raises:
        ConfigError: If the file is not a trace.
        OSError: If the file cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            return parse_trace(file)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ConfigError(f"{os.fspath(path)!r} is not a trace: {error}") from error


def parse_trace(file: IO[str]) -> TraceRecord:
    """Read an open trace file.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError, RecursionError: If the file is not a trace.
    """
    lines = _lines(file)
    head = next(lines, {})
    if head.get("trace") != 1:
        raise ValueError("it does not begin with the first line of a trace")
    record = TraceRecord(_number(head.get("began_at", 0.0)))
    open_calls: dict[str, Calls] = {}
    for line in lines:
        _process_line(record, open_calls, line)
    for sandbox in open_calls.values():
        record.calls += sandbox.close()
    record.calls.sort(key=lambda call: call.begun)
    return record


def _process_line(record: TraceRecord, open_calls: dict[str, Calls], line: dict[str, Any]) -> None:
    if "event" in line:
        record.events.append(line)
        return
    sandbox = _name(line["sandbox"])
    calls = open_calls.setdefault(sandbox, Calls(sandbox))
    if "begun" in line:
        calls.begin(int(line["begun"]), _name(line["method"]), _number(line["t"]))
    elif "dir" in line:
        record.frames += 1
        if (call := calls.add(_frame(line))) is not None:
            record.calls.append(call)
    elif "lost" in line:
        record.calls += calls.close()


def _frame(line: dict[str, Any]) -> TracedFrame:
    kind = int(FrameType[line["type"]])
    return TracedFrame(
        _name(line["dir"]),
        kind,
        int(line["id"]),
        int(line.get("channel", 0)),
        int(_number(line["bytes"])),
        _number(line["t"]),
        _optional_name(line, "method"),
        _optional_name(line, "slot"),
        _number(line["exec_s"]) if "exec_s" in line else None,
        _optional_name(line, "error"),
        last=not line.get("more", False),
    )


def _number(value: object) -> float:
    if (type(value) is float or type(value) is int) and abs(value) < MAX_NUMBER:
        return float(value)
    raise ValueError("a number is invalid")


def _name(value: object) -> str:
    if isinstance(value, str) and len(value) < MAX_NAME_CHARS:
        return value
    raise ValueError("a name is invalid")


def _optional_name(line: dict[str, Any], name: str) -> str | None:
    return _name(line[name]) if name in line else None


def _lines(file: IO[str]) -> Iterator[dict[str, Any]]:
    while text := file.readline(MAX_LINE_CHARS):
        try:
            line = json.loads(text)
        except ValueError:
            if text.endswith("\n"):
                raise
            return  # incomplete: the writing process was killed
        if not isinstance(line, dict):
            raise TypeError("a line is not a JSON object")
        yield line
