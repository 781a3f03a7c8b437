"""OpenAI's chat format for fine-tuning: `messages` and `tools`."""

from __future__ import annotations

from typing import ClassVar

from hermes_agent.messages import Message
from hermes_agent.models.chat_images import move_images
from hermes_batch.export.example import TrainingExample
from hermes_batch.export.images import data_uri, image_url
from hermes_batch.export.writers import LineWriter


class OpenAIWriter(LineWriter):
    """Writes `messages` and `tools` as they were sent.

    Images are data URIs in messages of the user: the format has no other place for images of results. The model's
    thinking is `reasoning_content`, which open models' chat templates read; OpenAI's own fine-tuning has no such field.
    """

    features: ClassVar = {"messages": {"list": "json"}, "tools": {"list": "json"}}

    def render(self, example: TrainingExample) -> dict[str, object]:
        """Return the line of a record."""
        messages = example.trainable_messages(reasoning=self._options.reasoning)
        line: dict[str, object] = {"messages": [_embed_images(example, each) for each in move_images(messages)]}
        return line | {"tools": example.tools} if example.tools else line


def _embed_images(example: TrainingExample, message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [
        {"type": "text", "text": str(part.get("text", ""))}
        if part.get("type") == "text"
        else {"type": "image_url", "image_url": {**part["image_url"], "url": data_uri(example.run, image_url(part))}}
        for part in content
    ]
    return {**message, "content": parts}
