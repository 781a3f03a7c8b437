"""Traces of a pool: recording of calls and events, and a reader for trace files."""

from __future__ import annotations

from hermes_exec.tracing.calls import Call
from hermes_exec.tracing.reader import read_trace
from hermes_exec.tracing.writer import Tracer

__all__ = ["Call", "Tracer", "read_trace"]
