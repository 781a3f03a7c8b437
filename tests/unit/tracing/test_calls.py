"""Calls put together from frames: their phases, what they say of themselves, and a channel that is lost."""

from __future__ import annotations

import pytest

from hermes_exec.channel.frames import MORE, FrameType, encode, encode_message
from hermes_exec.channel.trace import TracedFrame, trace_frame
from hermes_exec.tracing import Call
from hermes_exec.tracing.calls import MAX_FRAMES, Calls


def frame(kind: FrameType, at: float, size: int = 10, *, last: bool = True, exec_s: float | None = None) -> TracedFrame:
    direction = "<" if kind in (FrameType.RESPONSE, FrameType.DATA, FrameType.RESUMED) else ">"
    return TracedFrame(direction, kind, 1, 0, size, at, exec_s=exec_s, last=last)


def call(*frames: TracedFrame, begun: float = 0.0) -> Call:
    calls = Calls("sandbox")
    calls.begin(1, "exec.run", begun)
    done = [ended for each in frames if (ended := calls.add(each)) is not None]
    return done[0] if done else calls.close()[0]


@pytest.mark.parametrize(
    ("frames", "phases", "why"),
    [
        (
            [frame(FrameType.REQUEST, 0.0), frame(FrameType.RESPONSE, 1.0, exec_s=0.8)],
            {"queue": 0.0, "out": 0.1, "exec": 0.8, "back": 0.1},
            "command itself",
        ),
        (
            [frame(FrameType.REQUEST, 3.0), frame(FrameType.RESPONSE, 4.0, exec_s=0.8)],
            {"queue": 3.0, "out": 0.1, "exec": 0.8, "back": 0.1},
            "earlier commands",
        ),
        (
            [frame(FrameType.REQUEST, 0.0), frame(FrameType.RESUME, 0.5), frame(FrameType.RESPONSE, 1.0, exec_s=0.2)],
            {"queue": 0.0, "out": 0.4, "exec": 0.2, "back": 0.4},
            "stream broke",
        ),
        (
            [frame(FrameType.REQUEST, 0.0), frame(FrameType.DATA, 0.5, 3 << 20), frame(FrameType.RESPONSE, 1.0)],
            {"queue": 0.0, "out": 0.5, "exec": 0.0, "back": 0.5},
            "3 MiB",
        ),
        ([frame(FrameType.REQUEST, 0.0), frame(FrameType.DATA, 0.5)], {"queue": 0.0, "out": 0.25}, "not answered"),
        ([], {"queue": 0.0, "out": 0.0}, "not answered"),
        # A clock of the sandbox that runs fast.
        (
            [frame(FrameType.REQUEST, 0.0), frame(FrameType.RESPONSE, 1.0, exec_s=5.0)],
            {"queue": 0.0, "out": 0.0, "exec": 1.0, "back": 0.0},
            "command itself",
        ),
    ],
)
def test_where_the_time_went(frames: list[TracedFrame], phases: dict[str, float], why: str) -> None:
    found = call(*frames)
    assert {name: found.phases[name] for name in phases} == pytest.approx(phases)  # type: ignore[index]
    assert why in found.why


def test_a_call_counts_all_frames_and_keeps_some() -> None:
    many = [frame(FrameType.DATA, 0.1 * at) for at in range(MAX_FRAMES * 2)]
    found = call(
        frame(FrameType.REQUEST, 0.0),
        *many,
        frame(FrameType.RESPONSE, 99.0, last=False),
        frame(FrameType.RESPONSE, 100.0),
    )
    assert (found.frame_count, found.total_s) == (MAX_FRAMES * 2 + 3, 100.0)
    assert len(found.frames) == MAX_FRAMES + 2
    assert (found.sent_bytes, found.received_bytes) == (10, 10 * (MAX_FRAMES * 2 + 2))


def test_what_is_not_answered_is_lost_with_its_channel() -> None:
    calls = Calls("sandbox")
    calls.begin(1, "exec.run", 0.0)
    assert calls.add(frame(FrameType.REQUEST, 0.0)) is None
    (found,) = calls.close()
    assert (found.error, found.answered) == ("lost", None)
    assert calls.add(frame(FrameType.RESPONSE, 1.0)) is None
    assert calls.close() == []


def seen(data: bytes) -> TracedFrame:
    return trace_frame("<", data[4], data[5], 0, 1, data[16:], 0.0)


def test_nothing_of_a_request_is_told_but_its_method_and_slot() -> None:
    text = b'{"method":"exec.run","params":{"slot":"s0","shell":"echo hush"},"window":1}'
    found = seen(encode_message(FrameType.REQUEST, 1, text))
    assert (found.method, found.slot) == ("exec.run", "s0")
    assert "hush" not in repr(found)
    other = seen(encode_message(FrameType.REQUEST, 1, b'{"method":"x","params":{"shell":"\\"slot\\":\\"hush\\""}}'))
    assert (other.method, other.slot) == ("x", None)


@pytest.mark.parametrize(
    ("text", "exec_s", "error"),
    [
        (b'{"result":{"exit_code":0,"duration_s":0.5}}', 0.5, None),
        (b'{"result":{"exit_code":0,"duration_s":"hush"}}', None, None),
        (b'{"result":{"exit_code":0,"duration_s":1e999}}', None, None),
        (b'{"result":{"duration_s":0.5}}', None, None),
        (b'{"error":{"kind":"no_slot","message":"hush"}}', None, "no_slot"),
        (b'{"error":{"kind":"hush hush"}}', None, "internal"),
        (b"hush", None, None),
    ],
)
def test_nothing_of_an_answer_is_told_but_its_time_or_kind_of_error(
    text: bytes, exec_s: float | None, error: str | None
) -> None:
    found = seen(encode(FrameType.RESPONSE, 1, text))
    assert (found.exec_s, found.error, found.last) == (exec_s, error, True)
    assert "hush" not in repr(found)
    assert not seen(encode(FrameType.RESPONSE, 1, text, flags=MORE)).last
