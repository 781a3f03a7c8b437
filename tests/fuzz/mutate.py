"""Changes to valid input, each decided by a seed: in JSON at one place, in a conversation at one frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from hermes_exec.channel.frames import HEADER, MAX_PAYLOAD, POSITION, FrameType, parse_json
from hermes_exec.errors import ProtocolError

DEEP = '{"x":' * 900 + "1" + "}" * 900
HOSTILE: tuple[str, ...] = (
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "3",
    "0.5",
    "1e999",
    "-Infinity",
    "NaN",
    "9223372036854775808",
    "-9223372036854775809",
    "1" + "0" * 400,
    '""',
    '"a"',
    '"\\u0000"',
    '"\\ud800"',
    '"../../../x"',
    '"\\u001b]0;x\\u0007"',
    '"' + "x" * 5000 + '"',
    '{"b64":"/w=="}',
    '{"b64":"\\u00e9"}',
    '{"b64":5}',
    "[]",
    "[[]]",
    "{}",
    "[1,2,3]",
    "[[1,3],[2,-3]]",
    "[[[],1]]",
    "[null]",
    DEEP,
)
MARK = "\x01here\x01"


def json_text(rng: Random, data: bytes) -> bytes:
    """A JSON object with one of its values replaced, left out or doubled; other bytes as they are, cut or flipped."""
    try:
        value = parse_json(data)
    except ProtocolError:
        return flipped(rng, data)
    try:
        places = list(_places(value))
        if not places:
            return rng.choice(HOSTILE).encode()
        holder, key = rng.choice(places)
        match rng.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(holder[key])
            case _:
                holder[key] = MARK
        return json.dumps(value, separators=(",", ":")).replace(json.dumps(MARK), rng.choice(HOSTILE), 1).encode()
    except (RecursionError, ValueError):
        return flipped(rng, data)


def _places(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - JSON
    found: list[tuple[Any, Any]] = []
    rest = [value]
    while rest and len(found) < 500:
        each = rest.pop()
        keys = list(each) if isinstance(each, dict) else list(range(len(each)))
        for key in keys:
            found.append((each, key))
            if isinstance(each[key], dict | list):
                rest.append(each[key])
    return found


def flipped(rng: Random, data: bytes) -> bytes:
    """Bytes with a few of them changed, cut out or put in."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
            case 1:
                del out[at : at + rng.randint(1, 8)]
            case _ if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def split(data: bytes) -> list[bytes]:
    """Whole frames, one by one."""
    frames, at = [], 0
    while at < len(data):
        size = HEADER.size + int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at : at + size])
        at += size
    return frames


def with_header(frame: bytes, **fields: int) -> bytes:
    """A frame with other numbers in its header."""
    names = ("length", "kind", "flags", "channel", "number")
    whole = {**dict(zip(names, HEADER.unpack_from(frame), strict=True)), **fields}
    return HEADER.pack(*(whole[name] for name in names)) + frame[HEADER.size :]


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """A frame with another payload, and the length of that."""
    payload = payload[:MAX_PAYLOAD]
    return with_header(frame[: HEADER.size], length=len(payload)) + payload


def _numbers(rng: Random, frame: bytes) -> bytes:
    number = HEADER.unpack_from(frame)[4]
    match rng.randrange(5):
        case 0:
            return with_header(frame, kind=rng.choice([int(rng.choice(list(FrameType))), rng.randrange(256)]))
        case 1:
            return with_header(frame, flags=rng.choice([0, 1, 2, 255]))
        case 2:
            return with_header(frame, channel=rng.choice([0, 1, 2, 3, 5, 6, 65_535]))
        case 3:
            return with_header(frame, number=rng.choice([0, max(0, number - 1), number + 1, 2**63, 2**64 - 1]))
    return with_header(frame, length=rng.choice([0, 7, 8, MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**32 - 1]))


def _position(rng: Random, frame: bytes) -> bytes:
    payload = frame[HEADER.size :]
    if len(payload) < POSITION.size:
        return with_payload(frame, rng.randbytes(8))
    at = POSITION.unpack_from(payload)[0]
    moved = rng.choice([0, max(0, at - 1), at + 1, at + 65_536, 2**62, 2**63, 2**64 - 1])
    return with_payload(frame, POSITION.pack(moved & (1 << 64) - 1) + payload[POSITION.size :])


def _content(rng: Random, frame: bytes) -> bytes:
    kind, payload = frame[4], frame[HEADER.size :]
    if kind == FrameType.EVENT:
        return with_payload(frame, payload[:8] + json_text(rng, payload[8:]))
    if kind == FrameType.DATA:
        return with_payload(frame, payload[:8] + flipped(rng, payload[8:]))
    return with_payload(frame, json_text(rng, payload) if payload[:1] == b"{" else flipped(rng, payload))


def conversation(rng: Random, frames: list[bytes]) -> list[bytes]:
    """The frames with one of them changed, doubled, moved, left out or followed by garbage; any may come in pieces."""
    out = list(frames)
    if not out:
        return [rng.randbytes(rng.randint(1, 40))]
    at = rng.randrange(len(out))
    one: dict[int, Callable[[Random, bytes], bytes]] = {0: _numbers, 1: _position, 2: _content, 3: _content}
    match rng.randrange(9):
        case 4:
            out.insert(at, out[at])
        case 5:
            out.insert(rng.randrange(len(out)), out.pop(at))
        case 6:
            del out[at]
        case 7:
            out[at] = flipped(rng, out[at])
        case 8:
            out.insert(at, rng.randbytes(rng.randint(1, 40)))
        case how:
            changed = flipped if len(out[at]) < HEADER.size else one[how]
            out[at] = changed(rng, out[at])
    return out
