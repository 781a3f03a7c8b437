"""Answers of a sandbox that contradict themselves are ProtocolErrors; errors become what callers know."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from hermes_exec.channel import RemoteError
from hermes_exec.channel.encoding import from_wire, to_wire
from hermes_exec.errors import ConfigError, IsolationError, OutputLimitExceeded, ProtocolError, SandboxDied, SlotClosed
from hermes_exec.slot.answers import isolation, receipt, remote_failure
from hermes_exec.slot.run_result import run_result

USAGE = {"user_s": 0.1, "system_s": 0.0, "max_rss_bytes": 5}


def answer(**more: Any) -> dict[str, Any]:
    kept = {"total": 3, "head": 3, "tail": 0}
    none = {"total": 0, "head": 0, "tail": 0}
    return {"exit_code": 0, "duration_s": 0.1, "usage": USAGE, "stdout": kept, "stderr": none, "segments": []} | more


def test_order_is_put_together_from_segments() -> None:
    told = answer(stderr={"total": 2, "head": 2, "tail": 0}, segments=[[1, 1], [2, 2], [1, 2]])
    result = run_result(told, {1: [b"a", b"bc"], 2: [b"XY"]}, merged=False, request_id=7)
    assert (result.output, result.stdout, result.stderr, result.request_id) == ("aXYbc", "abc", "XY", 7)


def test_bytes_that_were_dropped_are_counted_and_marked_once() -> None:
    told = answer(stdout={"total": 100, "head": 2, "tail": 1})
    result = run_result(told, {1: [b"abc"]}, merged=False, request_id=None)
    assert result.stdout_bytes == b"abc"
    assert result.stdout == "ab\n[... 97 bytes dropped ...]\nc"
    assert result.truncated


@pytest.mark.parametrize(
    ("more", "output"),
    [
        ({}, {1: [b"ab"]}),
        ({"stdout": {"total": 1, "head": 3, "tail": 0}}, {1: [b"abc"]}),
        ({"stdout": None}, {1: [b"abc"]}),
        ({"exit_code": "0"}, {1: [b"abc"]}),
        ({"exit_code": True}, {1: [b"abc"]}),
        ({"usage": None}, {1: [b"abc"]}),
        ({"killed": 5}, {1: [b"abc"]}),
        ({"spill_path": 5}, {1: [b"abc"]}),
        ({"stderr": {"total": 1, "head": 1, "tail": 0}}, {1: [b"abc"], 2: [b"X"]}),
        ({"stderr": {"total": 1, "head": 1, "tail": 0}, "segments": [[9, 4]]}, {1: [b"abc"], 2: [b"X"]}),
        ({"stderr": {"total": 1, "head": 1, "tail": 0}, "segments": [[1, -3], [2, 1]]}, {1: [b"abc"], 2: [b"X"]}),
        (
            {"stderr": {"total": 1, "head": 1, "tail": 0}, "segments": [[1, 3], [1, -2], [2, 1]]},
            {1: [b"abc"], 2: [b"X"]},
        ),
    ],
)
def test_contradictions_are_protocol_errors(more: dict[str, Any], output: dict[int, list[bytes]]) -> None:
    with pytest.raises(ProtocolError):
        run_result(answer(**more), output, merged=False, request_id=None)


@pytest.mark.parametrize("bad", [None, 5, {}, {"found": -1}, {"level": "best"}])
def test_receipts_and_isolation_are_checked(bad: object) -> None:
    for parse in (receipt, isolation):
        with pytest.raises(ProtocolError):
            parse(bad)


@pytest.mark.parametrize("value", ["plain", "größe", "raw\udcff", "line\n"])
def test_byte_strings_survive_the_wire(value: str) -> None:
    assert from_wire(to_wire(value, "x"), "x") == value


def test_byte_strings_that_cannot_be_are_refused() -> None:
    for bad in ("a\0", "\ud800", b"\0", 5):
        with pytest.raises(ConfigError):
            to_wire(bad, "x")  # type: ignore[arg-type]
    for answered in (None, 5, {"b64": "?"}, {"b64": 5}, {}):
        with pytest.raises(ProtocolError):
            from_wire(answered, "x")


def test_errors_of_the_runner_become_those_of_callers() -> None:
    missing = remote_failure(RemoteError({"kind": "os", "message": "no", "errno": "ENOENT"}), path="a/b")
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (errno.ENOENT, "a/b")
    kinds = {
        "too_large": OutputLimitExceeded,
        "slot_closed": SlotClosed,
        "no_process": ProcessLookupError,
        "bad_request": ConfigError,
        "user": ConfigError,
        "isolation": IsolationError,
        "timeout": TimeoutError,
        "slot_died": SandboxDied,
        "stale": ProtocolError,
    }
    for kind, expected in kinds.items():
        assert isinstance(remote_failure(RemoteError({"kind": kind, "message": "why"})), expected)
    unknown = remote_failure(RemoteError({"kind": "os", "message": "odd", "errno": "ENOSUCHNAME"}))
    assert type(unknown) is OSError
