"""One conversation between two streams."""

from __future__ import annotations

import pytest

from hermes_exec.aio.waker import current_waker
from hermes_exec.channel.conversation import Conversation
from hermes_exec.channel.frames import Decoder, FrameType
from hermes_exec.errors import ChannelLost

pytestmark = [pytest.mark.anyio]


def between_streams(written: list[bytes]) -> Conversation:
    """A conversation that was sent on a stream which is lost, and has asked a new one to go on."""
    conversation = Conversation(written.append, current_waker(), 1, b"{}", 1 << 20, 1 << 20)
    conversation.start()
    conversation.resume()
    return conversation


@pytest.mark.parametrize("known", [False, True])
async def test_a_runner_that_may_not_know_the_request_is_sent_nothing_about_it(known: bool) -> None:
    written: list[bytes] = []
    conversation = between_streams(written)
    await conversation.send(b"input")
    await conversation.end()
    assert written == []
    frames = Decoder().feed(conversation.on_resumed(bytes([known]) + bytes(8)))
    rest = [FrameType.DATA, FrameType.END]
    assert [frame.type for frame in frames] == (rest if known else [FrameType.REQUEST, *rest])
    conversation.cancel_nowait()
    assert [frame.type for frame in Decoder().feed(b"".join(written))] == [FrameType.CANCEL]


@pytest.mark.parametrize("known", [False, True])
async def test_what_was_cancelled_between_two_streams_is_not_begun(known: bool) -> None:
    written: list[bytes] = []
    conversation = between_streams(written)
    conversation.cancel_nowait()
    assert written == []
    frames = Decoder().feed(conversation.on_resumed(bytes([known]) + bytes(8)))
    assert [frame.type for frame in frames] == ([FrameType.CANCEL] if known else [])
    assert conversation.finished == (not known)
    if not known:
        with pytest.raises(ChannelLost, match="cancelled before the runner had it"):
            await conversation.response()
