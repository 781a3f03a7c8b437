"""Traces of a pool: what is recorded of each call, and how it is read again."""

from __future__ import annotations

from hermes_exec.tracing.calls import Call
from hermes_exec.tracing.reader import read_trace
from hermes_exec.tracing.writer import Tracer

__all__ = ["Call", "Tracer", "read_trace"]
