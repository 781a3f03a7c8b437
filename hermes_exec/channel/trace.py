"""Records of a channel's frames for tracing: types, sizes and times, never the content."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from hermes_exec.channel.frames import MORE, FrameType, parse_json
from hermes_exec.errors import ProtocolError

_REQUEST = re.compile(rb'\{"method":"([a-z_.]{1,40})","params":\{(?:"slot":"([A-Za-z0-9._-]{1,64})")?')
_KIND = re.compile(r"[a-z_]{1,32}")


class TracedFrame(NamedTuple):
    """One frame. `direction` is `>` to the sandbox or `<` from it; `time` is from `time.monotonic()`.

    A REQUEST has its method and slot, a RESPONSE the kind of its error. The result of a command has its run time in the
    sandbox.
    """

    direction: str
    type: int
    id: int
    channel: int
    bytes: int
    time: float
    method: str | None = None
    slot: str | None = None
    exec_s: float | None = None
    error: str | None = None
    last: bool = True
    """Whether this frame ends its message."""


class ChannelTrace(Protocol):
    """Receives all frames of one channel. It is called in the event loop; for keepalives, in any thread."""

    def on_call(self, number: int, method: str, since: float) -> None:
        """Record a call that begins; its caller has waited since `since`."""

    def on_frame(self, frame: TracedFrame) -> None:
        """Record a frame that was sent or received."""

    def on_connect(self, handshake_s: float) -> None:
        """Record a stream that was opened, either the first one or a replacement."""

    def on_lost(self, why: str) -> None:
        """Record the end of the channel: open calls stay unanswered."""


def trace_frame(
    direction: str, kind: int, flags: int, channel: int, number: int, payload: bytes | memoryview, now: float
) -> TracedFrame:
    """Return the traced facts of a frame."""
    frame = TracedFrame(direction, kind, number, channel, len(payload), now, last=not flags & MORE)
    if kind == FrameType.REQUEST and (match := _REQUEST.match(payload)):
        slot = match[2]
        return frame._replace(method=match[1].decode(), slot=None if slot is None else slot.decode())
    if kind == FrameType.RESPONSE and frame.last:
        return _trace_response(frame, bytes(payload))
    return frame


def _trace_response(frame: TracedFrame, payload: bytes) -> TracedFrame:
    try:
        answer = parse_json(payload)
    except ProtocolError:
        return frame  # the last part of a long message
    result, error = answer.get("result"), answer.get("error")
    if isinstance(error, dict):
        kind = error.get("kind")
        return frame._replace(error=kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "internal")
    seconds = result.get("duration_s") if isinstance(result, dict) and "exit_code" in result else None
    return frame._replace(exec_s=float(seconds)) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else frame
