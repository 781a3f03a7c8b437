"""Frames of the wire (docs/protocol.md), encoded and decoded. Frames of a sandbox may be hostile."""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, NamedTuple

from hermes_exec.errors import ProtocolError

HEADER = struct.Struct(">IBBHQ")
POSITION = struct.Struct(">Q")
POSITIONED_HEADER = struct.Struct(">IBBHQQ")
MAX_PAYLOAD = 65_536
MAX_DATA = MAX_PAYLOAD - POSITION.size
MAX_MESSAGE_BYTES = 32 << 20
_EXCERPT_BYTES = 64
_TEXT_BYTES = 4
"""Characters at the start of a line that make it a text: they would be a length above `MAX_PAYLOAD`."""
MORE = 1


class FrameType(IntEnum):
    """The types of frames."""

    HELLO = 1
    WELCOME = 2
    PROOF = 3
    READY = 4
    REQUEST = 10
    RESPONSE = 11
    EVENT = 12
    DATA = 13
    END = 14
    CREDIT = 15
    ACK = 16
    CANCEL = 17
    RESUME = 18
    RESUMED = 19
    KEEPALIVE = 20
    GOODBYE = 21


# Not the obvious code: see docs/why-not-obvious.md ("JSON coders made once").
_decode = json.JSONDecoder().decode
encode_json = json.JSONEncoder(separators=(",", ":")).encode

KNOWN_TYPES = frozenset(int(t) for t in FrameType)
KEEPALIVE_FRAME = HEADER.pack(0, FrameType.KEEPALIVE, 0, 0, 0)


class Frame(NamedTuple):
    """One received frame; `payload` is a copy of its own."""

    type: int
    flags: int
    channel: int
    conversation: int
    payload: bytes


def encode(kind: FrameType, conversation: int = 0, payload: bytes = b"", channel: int = 0, flags: int = 0) -> bytes:
    """Encode one frame; the payload is at most `MAX_PAYLOAD` bytes."""
    return HEADER.pack(len(payload), kind, flags, channel, conversation) + payload


def encode_positioned(
    kind: FrameType, conversation: int, channel: int, position: int, data: bytes | memoryview = b""
) -> bytes:
    """Encode a DATA, EVENT or END frame with the position at which it starts."""
    return b"".join((POSITIONED_HEADER.pack(len(data) + POSITION.size, kind, 0, channel, conversation, position), data))


def encode_position(kind: FrameType, conversation: int, position: int) -> bytes:
    """Encode a CREDIT or RESUME frame."""
    return POSITIONED_HEADER.pack(POSITION.size, kind, 0, 0, conversation, position)


def encode_message(kind: FrameType, conversation: int, message: bytes) -> bytes:
    """Encode a REQUEST in as many frames as it needs."""
    if len(message) <= MAX_PAYLOAD:
        return HEADER.pack(len(message), kind, 0, 0, conversation) + message
    view = memoryview(message)
    parts: list[bytes | memoryview] = []
    for start in range(0, len(message), MAX_PAYLOAD):
        piece = view[start : start + MAX_PAYLOAD]
        flags = MORE if start + MAX_PAYLOAD < len(message) else 0
        parts += (HEADER.pack(len(piece), kind, flags, 0, conversation), piece)
    return b"".join(parts)


class Decoder:
    """Splits a byte stream into frames. Holds at most one partial frame besides the latest bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes.

        Raises:
            ProtocolError: If the bytes cannot be a frame.
        """
        if self._buffer:
            self._buffer += data
            source: bytes | bytearray = self._buffer
        elif len(data) >= HEADER.size:
            # Not the obvious code: see docs/why-not-obvious.md ("Whole frames first").
            length, kind, flags, channel, conversation = HEADER.unpack_from(data)
            if len(data) == HEADER.size + length <= HEADER.size + MAX_PAYLOAD and kind in KNOWN_TYPES:
                return [Frame(kind, flags, channel, conversation, data[HEADER.size :])]
            source = data
        else:
            source = data
        frames: list[Frame] = []
        offset, size = 0, len(source)
        with memoryview(source) as view:
            while size - offset >= HEADER.size:
                length, kind, flags, channel, conversation = HEADER.unpack_from(view, offset)
                if length > MAX_PAYLOAD or kind not in KNOWN_TYPES:
                    raise _frame_error(bytes(view[offset : offset + _EXCERPT_BYTES]), kind, length)
                end = offset + HEADER.size + length
                if end > size:
                    break
                frames.append(Frame(kind, flags, channel, conversation, bytes(view[offset + HEADER.size : end])))
                offset = end
            rest = bytes(view[offset:])
        self._buffer = bytearray(rest)
        return frames


def _frame_error(start: bytes, kind: int, length: int) -> ProtocolError:
    """Return the error of bytes that begin no frame, with the text if they are text of another program."""
    text = start.splitlines()[0] if start else b""
    if len(text) >= _TEXT_BYTES and text.isascii() and text.decode().isprintable():
        return ProtocolError(
            f"a program other than the runner wrote {text.decode()!r} to its stream; on ssh, redirect the output of "
            "programs that the start-up files of the login leave running"
        )
    return ProtocolError(f"the sandbox sent a frame of type {kind} and {length} bytes")


def parse_json(payload: bytes) -> dict[str, Any]:
    """Parse a JSON object of a sandbox.

    Raises:
        ProtocolError: If it is anything else.
    """
    try:
        value = _decode(str(payload, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the sandbox sent bad JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError("the sandbox sent JSON that is not an object")
    return value


def unpack_position(payload: bytes) -> int:
    """Return the u64 at the start of a positioned frame."""
    if len(payload) < POSITION.size:
        raise ProtocolError("the sandbox sent a positioned frame without a position")
    position: int = POSITION.unpack_from(payload)[0]
    return position
