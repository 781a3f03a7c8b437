"""One conversation between two streams."""

from __future__ import annotations

import pytest

from hermes_exec.channel.conversation import Conversation
from hermes_exec.channel.frames import Decoder, FrameType

pytestmark = [pytest.mark.anyio]


@pytest.mark.parametrize("known", [False, True])
async def test_a_runner_that_may_not_know_the_request_is_sent_nothing_about_it(known: bool) -> None:
    written: list[bytes] = []
    conversation = Conversation(written.append, 1, b"{}", 1 << 20, 1 << 20)
    conversation.start()
    conversation.resume()
    await conversation.send(b"input")
    await conversation.end()
    conversation.cancel_nowait()
    assert written == []
    frames = Decoder().feed(conversation.on_resumed(bytes([known]) + bytes(8)))
    rest = [FrameType.DATA, FrameType.END, FrameType.CANCEL]
    assert [frame.type for frame in frames] == (rest if known else [FrameType.REQUEST, *rest])
    await conversation.send(b"")
    conversation.cancel_nowait()
    assert [frame.type for frame in Decoder().feed(b"".join(written))] == [FrameType.CANCEL]
