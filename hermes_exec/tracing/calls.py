"""Calls reconstructed from the frames of a trace: their time in the queue, on the wire and in execution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hermes_exec.channel.frames import FrameType
from hermes_exec.channel.trace import TracedFrame

Phase = Literal["queue", "out", "exec", "back"]
MAX_FRAMES = 200
"""The maximum number of frames kept per call; further frames are only counted."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call over a channel. Times are values of `time.monotonic()`, durations are seconds.

    `queue_s` is the wait before the request was sent: for earlier commands of its session, or for a stream. `exec_s` is
    the run time of the command, as the runner measured it. The rest is the time on the wire, divided equally between
    both directions, because the clocks of both ends need not agree. A call that runs no command spends all of it on the
    wire.
    """

    sandbox: str
    id: int
    method: str
    begun: float
    slot: str | None = None
    sent: float | None = None
    answered: float | None = None
    exec_s: float = 0.0
    error: str | None = None
    """The kind of the runner's error; `lost` if the response never came."""
    sent_bytes: int = 0
    received_bytes: int = 0
    frame_count: int = 0
    reconnected: int = 0
    frames: tuple[TracedFrame, ...] = field(default=(), repr=False)

    @property
    def total_s(self) -> float:
        """The time from the start to the response, or to the last known frame."""
        last = max((frame.time for frame in self.frames), default=self.begun)
        return (last if self.answered is None else self.answered) - self.begun

    @property
    def queue_s(self) -> float:
        """The time before the request was sent."""
        return self.total_s if self.sent is None else self.sent - self.begun

    @property
    def wire_s(self) -> float:
        """The time on the wire in both directions, including the runner's own work."""
        return max(0.0, self.total_s - self.queue_s - self.exec_s)

    @property
    def phases(self) -> dict[Phase, float]:
        """The phases in order: queue, wire out, exec, wire back."""
        if self.sent is None:
            return {"queue": self.queue_s, "out": 0.0, "exec": 0.0, "back": 0.0}
        ran = min(self.exec_s, max(0.0, self.total_s - self.queue_s))
        return {"queue": self.queue_s, "out": self.wire_s / 2, "exec": ran, "back": self.wire_s / 2}

    @property
    def why(self) -> str:
        """The main reason for its duration, in words."""
        if self.answered is None:
            return "it was not answered"
        parts = {"queue": self.queue_s, "exec": self.exec_s, "wire": self.wire_s}
        most = max(parts, key=lambda name: parts[name])
        if most == "exec":
            return "the command itself ran for most of it"
        if most == "queue":
            return "it waited for earlier commands of its session, or for a stream"
        if self.reconnected:
            return "its stream broke and was replaced"
        if max(self.sent_bytes, self.received_bytes) > 1 << 20:
            return f"{(self.sent_bytes + self.received_bytes) >> 20} MiB went over the stream"
        if not self.exec_s:
            return "the runner's work and the way to it"
        return "not the command: the way to it, its slot's first start, or this process, which did not read"


class Calls:
    """The unfinished calls of one sandbox, updated with each traced frame in order."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._open: dict[int, Call] = {}
        self._frames: dict[int, list[TracedFrame]] = {}

    def begin(self, number: int, method: str, since: float) -> None:
        """Add a new call."""
        self._open[number] = Call(self._sandbox, number, method, since)
        self._frames[number] = []

    def add(self, frame: TracedFrame) -> Call | None:
        """Add a frame, and return its call if the frame completes the response."""
        call = self._open.get(frame.id)
        if call is None:
            return None
        frames = self._frames[frame.id]
        if len(frames) < MAX_FRAMES or frame.type == FrameType.RESPONSE:
            frames.append(frame)
        self._open[frame.id] = call = self._count_frame(call, frame)
        if frame.type != FrameType.RESPONSE or call.answered is None:
            return None
        return self._close(frame.id)

    @staticmethod
    def _count_frame(call: Call, frame: TracedFrame) -> Call:
        outgoing = frame.direction == ">"
        call = replace(
            call,
            frame_count=call.frame_count + 1,
            sent_bytes=call.sent_bytes + (frame.bytes if outgoing else 0),
            received_bytes=call.received_bytes + (0 if outgoing else frame.bytes),
        )
        match frame.type:
            case FrameType.REQUEST if call.sent is None:
                return replace(call, sent=frame.time, slot=frame.slot)
            case FrameType.RESUME:
                return replace(call, reconnected=call.reconnected + 1)
            case FrameType.RESPONSE if frame.last:
                return replace(call, answered=frame.time, exec_s=frame.exec_s or 0.0, error=frame.error)
        return call

    def close(self) -> list[Call]:
        """Return the unfinished calls as lost, because the channel has ended."""
        return [self._close(number, "lost") for number in list(self._open)]

    def _close(self, number: int, error: str | None = None) -> Call:
        call, frames = self._open.pop(number), self._frames.pop(number)
        return replace(call, frames=tuple(frames), error=error or call.error)
