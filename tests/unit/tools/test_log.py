"""Which lines of a process's log are shown, of a log that goes on or loses its beginning meanwhile."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hermes_exec.tools.terminal.log import MAX_PART_BYTES, LogPart, read_log_part


class Log:
    """What a process keeps: the bytes from `kept_from` on. It prints `flood` more bytes with every read."""

    def __init__(self, data: bytes, kept_from: int = 0, flood: int = 0, keeps: int = 1 << 26) -> None:
        self.data, self.kept_from, self.flood, self.keeps = data, kept_from, flood, keeps
        self.stdout_bytes = len(data)
        self.reads = 0

    async def output(self, offset: int, *, limit_bytes: int) -> tuple[bytes, int]:
        self.reads += 1
        self.data += b"more\n" * (self.flood // 5)
        self.kept_from = max(self.kept_from, len(self.data) - self.keeps)
        begin = max(offset, self.kept_from)
        data = self.data[begin : begin + limit_bytes]
        return data, begin + len(data)


async def part_of(log: Log, first: int, most: int) -> LogPart:
    return await read_log_part(cast(Any, log), first, most)


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("first", [0, 1, 19_999, 99_998, 100_000, -1, -3, -85_000, -100_000, -200_000])
@pytest.mark.parametrize("most", [1, 200])
async def test_lines_are_those_of_the_whole_log(end: bytes, first: int, most: int) -> None:
    lines = [f"line {number}" for number in range(100_000)]
    shown = lines[first if first >= 0 else max(0, 100_000 + first) :][:most]
    part = await part_of(Log("\n".join(lines).encode() + end), first, most)
    assert part.text.split("\n") == (shown or [""])
    assert (part.line_count, part.total, part.lost_bytes, part.cut) == (len(shown), 100_000, 0, False)
    assert part.first == (first if first >= 0 else max(0, 100_000 + first))


async def test_an_empty_log() -> None:
    assert await part_of(Log(b""), -200, 200) == ("", 0, 0, 0, 0, False)
    assert await part_of(Log(b"x\n", kept_from=2), -200, 200) == ("", 0, 0, 0, 2, False)


async def test_what_is_held_is_bounded_and_said() -> None:
    whole = await part_of(Log(b"a\n" * (2 * MAX_PART_BYTES)), 0, 1 << 40)
    assert (len(whole.text), whole.first, whole.cut) == (MAX_PART_BYTES, 0, True)
    long = Log(b"first\n" + b"x" * (3 * MAX_PART_BYTES) + b"\nlast\n")
    tail = await part_of(long, -2, 2)
    assert tail.text.endswith("xx\nlast")
    assert (len(tail.text), tail.first, tail.line_count, tail.cut) == (MAX_PART_BYTES - 1, 1, 2, True)
    head = await part_of(long, 1, 2)
    assert (len(head.text), head.first, head.line_count, head.cut) == (MAX_PART_BYTES - len("first\n"), 1, 1, True)
    assert await part_of(long, 2, 200) == ("last", 2, 1, 3, 0, False)


async def test_a_log_that_grows_is_read_to_where_it_stood() -> None:
    log = Log(b"line\n" * 500_000, flood=1 << 20)
    part = await part_of(log, -1, 1)
    assert log.reads < 12
    assert (part.line_count, part.lost_bytes) == (1, 0)


async def test_a_log_that_loses_what_was_counted_is_counted_anew() -> None:
    log = Log(b"line\n" * 500_000, flood=1 << 20, keeps=1 << 18)
    part = await part_of(log, 0, 3)
    assert log.reads < 12
    assert part.text.endswith("\nmore\nmore")
    assert part.lost_bytes > 0
