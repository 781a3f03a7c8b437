"""The result of a command, built from `Exit` of the wire and the output before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_exec.errors import ProtocolError
from hermes_exec.results import RunResult
from hermes_exec.slot.answers import (
    integer,
    number,
    optional_integer,
    optional_path,
    optional_receipt,
    optional_text,
    usage,
)

STDOUT, STDERR, MERGED = 1, 2, 3
# Not the obvious code: see docs/why-not-obvious.md ("Rare fields of a result").
RARE_FIELDS = frozenset(
    ("signal", "timed_out", "oom_killed", "spill_path", "stderr_spill_path", "killed", "reason", "state_lost")
)
"""Fields that the answers of most commands leave out."""


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """The kept bytes of a stream: `cut_at` bytes of its head, then its tail. `total` counts all bytes written."""

    data: bytes
    total: int
    cut_at: int


EMPTY = KeptOutput(b"", 0, 0)


def run_result(
    answer: Mapping[str, Any], output: Mapping[int, Sequence[bytes]], *, merged: bool, request_id: int | None
) -> RunResult:
    """Return the caller's result. Raises ProtocolError if its parts contradict each other."""
    stdout = _parse_stream(answer, "stdout", output.get(STDOUT, ()))
    stderr = _parse_stream(answer, "stderr", output.get(STDERR, ()))
    both = stdout if merged else _merge(answer, stdout, stderr, output.get(MERGED, ()))
    rare: dict[str, Any] = {}
    if not RARE_FIELDS.isdisjoint(answer):
        rare = {
            "signal": optional_integer(answer, "signal"),
            "timed_out": answer.get("timed_out") is True,
            "oom_killed": answer.get("oom_killed") is True,
            "spill_path": optional_path(answer, "spill_path"),
            "stderr_spill_path": optional_path(answer, "stderr_spill_path"),
            "killed": optional_receipt(answer.get("killed")),
            "reason": optional_text(answer, "reason"),
            "state_lost": optional_text(answer, "state_lost"),
        }
    return RunResult(
        exit_code=integer(answer, "exit_code", least=-(2**31)),
        stdout_bytes=stdout.data,
        stderr_bytes=stderr.data,
        output_bytes=both.data,
        duration_s=number(answer, "duration_s"),
        usage=usage(answer.get("usage")),
        stdout_total_bytes=stdout.total,
        stderr_total_bytes=stderr.total,
        stdout_cut_at=stdout.cut_at,
        stderr_cut_at=stderr.cut_at,
        output_cut_at=both.cut_at,
        output_dropped_bytes=both.total - len(both.data),
        request_id=request_id,
        **rare,
    )


def _parse_stream(answer: Mapping[str, Any], name: str, pieces: Sequence[bytes]) -> KeptOutput:
    sizes = answer.get(name)
    if sizes is None and not pieces:
        return EMPTY
    if not isinstance(sizes, dict):
        raise ProtocolError(f"the sandbox did not report how much of {name} it kept")
    total, head, tail = integer(sizes, "total"), integer(sizes, "head"), integer(sizes, "tail")
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if head + tail != len(data) or total < len(data):
        raise ProtocolError(f"the sandbox sent {len(data)} bytes of {name} and announced {head} + {tail} of {total}")
    return KeptOutput(bytes(data), total, head)


def _merge(answer: Mapping[str, Any], stdout: KeptOutput, stderr: KeptOutput, pieces: Sequence[bytes]) -> KeptOutput:
    if answer.get("merged") is not None and pieces:
        return _parse_stream(answer, "merged", pieces)
    if not stderr.total:
        return stdout
    if not stdout.total:
        return stderr
    segments = answer.get("segments")
    if segments is None and not stdout.data and not stderr.data:
        return _parse_stream(answer, "merged", pieces)  # nothing of either was kept
    if not isinstance(segments, list):
        raise ProtocolError("the sandbox did not report the order of the output")
    parts: list[bytes] = []
    at = {STDOUT: 0, STDERR: 0}
    source = {STDOUT: stdout.data, STDERR: stderr.data}
    for segment in segments:
        stream, length = segment if isinstance(segment, list) and len(segment) == 2 else (None, None)
        # A negative length would let a small answer expand to any amount of output.
        if type(stream) is not int or stream not in at or type(length) is not int or length < 0:
            raise ProtocolError("the sandbox sent an impossible order of output")
        parts.append(source[stream][at[stream] : at[stream] + length])
        at[stream] += length
    data = b"".join(parts)
    if len(data) != len(stdout.data) + len(stderr.data):
        raise ProtocolError("the sandbox sent an order of output that does not cover it")
    return KeptOutput(data, len(data), len(data))
