"""A trace file read again: its calls with their phases, and the events of its pool."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hermes_exec.calls import Call, Calls
from hermes_exec.channel.frames import FrameType
from hermes_exec.channel.trace import TracedFrame
from hermes_exec.errors import ConfigError

MAX_LINE = 1 << 20


@dataclass(slots=True)
class TraceRecord:
    """What a trace tells; times are seconds since it began."""

    began_at: float
    calls: list[Call] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    frames: int = 0


def read_trace(path: str | os.PathLike[str]) -> TraceRecord:
    """Read a file that `trace=` or `--trace` wrote; a last line that is not whole is left out.

    Raises:
        ConfigError: it is no trace; OSError when it cannot be read.
    """
    lines = _lines(path)
    head = next(lines, {})
    if head.get("trace") != 1:
        raise ConfigError(f"{os.fspath(path)!r} is no trace: it does not begin with a line of one")
    record = TraceRecord(float(head.get("began_at", 0.0)))
    open_calls: dict[str, Calls] = {}
    try:
        for line in lines:
            _take(record, open_calls, line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{os.fspath(path)!r} is no trace: {error!r}") from error
    for box in open_calls.values():
        record.calls += box.lost()
    record.calls.sort(key=lambda call: call.begun)
    return record


def _take(record: TraceRecord, open_calls: dict[str, Calls], line: dict[str, Any]) -> None:
    if "event" in line:
        record.events.append(line)
        return
    calls = open_calls.setdefault(line["box"], Calls(line["box"]))
    if "begun" in line:
        calls.begun(int(line["begun"]), str(line["method"]), float(line["t"]))
    elif "dir" in line:
        record.frames += 1
        if (call := calls.frame(_frame(line))) is not None:
            record.calls.append(call)
    elif "lost" in line:
        record.calls += calls.lost()


def _frame(line: dict[str, Any]) -> TracedFrame:
    kind = int(FrameType[line["type"]])
    return TracedFrame(
        line["dir"],
        kind,
        int(line["id"]),
        int(line.get("channel", 0)),
        int(line["bytes"]),
        float(line["t"]),
        line.get("method"),
        line.get("slot"),
        line.get("exec_s"),
        line.get("error"),
        last=not line.get("more", False),
    )


def _lines(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        while text := file.readline(MAX_LINE):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                if text.endswith("\n"):
                    raise ConfigError(f"{os.fspath(path)!r} is no trace: a line of it is no JSON") from error
                return
            if not isinstance(line, dict):
                raise ConfigError(f"{os.fspath(path)!r} is no trace: a line of it is no object")
            yield line
