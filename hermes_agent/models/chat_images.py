"""Images of tool results, at the place where chat completion interfaces accept them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hermes_agent.messages import Message, content_of, image_parts, message_text


def move_images(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the images of results moved into a user message after the results of their turn.

    This is the only place where every endpoint with a vision model accepts them.
    """
    sent: list[Message] = []
    for role, run in groupby(messages, lambda message: message.get("role")):
        turn = list(run)
        images = [part for message in turn for part in image_parts(message)] if role == "tool" else []
        if not images:
            sent += turn
            continue
        names = ", ".join(str(message.get("name")) for message in turn if image_parts(message))
        sent += [{**message, "content": message_text(message)} for message in turn]
        sent.append({"role": "user", "content": content_of(f"Images of the results above, of {names}:", images)})
    return sent
