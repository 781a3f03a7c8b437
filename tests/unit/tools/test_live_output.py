"""Live output ends before the mark, also where a piece ends within it."""

from __future__ import annotations

import pytest

from hermes_exec.tools.call.live_output import _before_mark

MARK = b"\0end-1\0"


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (b"text", b"text"),
        (b"", b""),
        (b"text" + MARK, b"text"),
        (b"text" + MARK + b"more", b"text"),
        (b"text\0end", b"text"),
        (b"text\0", b"text"),
        (b"text\0\0", b"text\0"),
        (b"text\0 more", b"text\0 more"),
    ],
)
def test_output_ends_before_the_mark(data: bytes, before: bytes) -> None:
    assert _before_mark(data, MARK) == before


def test_output_without_a_mark_is_whole() -> None:
    assert _before_mark(b"text\0", b"") == b"text\0"
