"""Frames: what is encoded is decoded however it is cut, and what can never be a frame is refused at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_exec.channel.frames import (
    HEADER,
    KNOWN_TYPES,
    MAX_PAYLOAD,
    MORE,
    Decoder,
    Frame,
    FrameType,
    encode,
    encode_message,
    encode_position,
    encode_positioned,
    parse_json,
    unpack_position,
)
from hermes_exec.errors import ProtocolError

frames = st.builds(
    Frame,
    st.sampled_from(sorted(KNOWN_TYPES)),
    st.integers(0, 255),
    st.integers(0, 65_535),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
)


def encoded(frame: Frame) -> bytes:
    return encode(FrameType(frame.type), frame.conversation, frame.payload, frame.channel, frame.flags)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 400), max_size=20))
def test_decoded_as_encoded_however_it_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(encoded, sent))
    decoder, got, offset = Decoder(), [], 0
    for cut in [*cuts, len(data)]:
        got += decoder.feed(data[offset : offset + cut])
        offset += cut
    got += decoder.feed(data[offset:])
    assert got == sent


@given(st.lists(st.binary(max_size=200_000), max_size=4))
def test_garbage_is_refused_or_waits_for_one_frame(pieces: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for piece in pieces:
            decoder.feed(piece)
            assert len(decoder._buffer) < MAX_PAYLOAD + HEADER.size
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "header",
    [HEADER.pack(MAX_PAYLOAD + 1, FrameType.DATA, 0, 0, 1), HEADER.pack(0, 0, 0, 0, 1), HEADER.pack(0, 99, 0, 0, 1)],
    ids=["too long", "type 0", "type 99"],
)
def test_bad_headers(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="type"):
        Decoder().feed(header)


@given(st.binary(max_size=MAX_PAYLOAD * 3))
def test_messages_over_many_frames(message: bytes) -> None:
    got = Decoder().feed(encode_message(FrameType.REQUEST, 7, message))
    assert b"".join(frame.payload for frame in got) == message
    assert [bool(frame.flags & MORE) for frame in got] == [True] * (len(got) - 1) + [False]
    assert all(len(frame.payload) <= MAX_PAYLOAD for frame in got)


def test_positions() -> None:
    (frame,) = Decoder().feed(encode_positioned(FrameType.DATA, 3, 5, 1 << 40, b"abc"))
    assert (frame.conversation, frame.channel, unpack_position(frame.payload), frame.payload[8:]) == (
        3,
        5,
        1 << 40,
        b"abc",
    )
    (credit,) = Decoder().feed(encode_position(FrameType.CREDIT, 3, 9))
    assert unpack_position(credit.payload) == 9
    with pytest.raises(ProtocolError):
        unpack_position(b"1234567")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"{", b"\xff", b'{"a": ' * 100_000, b"[" * 200_000, b"1" * 10_000, b'"\\ud800']
)
def test_bad_json(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_json(text)


def test_text_of_another_program_is_quoted() -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match="a program other than the runner wrote 'tick 1' to its stream"):
        decoder.feed(b"tick 1\n" + HEADER.pack(0, FrameType.KEEPALIVE, 0, 0, 0))
