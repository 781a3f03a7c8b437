"""The images of an episode as files. Messages and records hold their paths instead of their content."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

from hermes_agent import CallRecord
from hermes_agent.messages import Message

SCREENSHOTS = "screenshots"
IMAGE_NAME = re.compile(r"([0-9a-f]{32}-)?(\d+-){1,2}\d+\.[a-z0-9]+")
"""The file names of images from `extract_images`, also of earlier versions."""
_DATA_URL = re.compile(r"data:image/([a-z0-9]+)(?:\+[a-z]+)?;base64,(.*)", re.DOTALL | re.IGNORECASE)


class Screenshot(TypedDict):
    """An image. `path` is the path of its file, relative to the trajectories, and `tool_call_id` the call that returned
    it (empty: the prompt).
    """

    tool_call_id: str
    path: str


class ExtractedImages(NamedTuple):
    """The messages with paths instead of images, the images in the order of the conversation, and the content of each
    path.
    """

    messages: list[Message]
    screenshots: list[Screenshot]
    files: dict[str, bytes]


def extract_images(stem: str, messages: Sequence[Message], calls: Iterable[CallRecord]) -> ExtractedImages:
    """Extract the images from the messages of an episode and from the results of its calls, which can include images
    that the model did not see. The names of their files begin with `stem`.
    """
    extracted = ExtractedImages([], [], {})
    paths: dict[tuple[str, bytes], str] = {}

    def path_of(call_id: str, image: bytes, kind: str) -> str:
        if (call_id, image) not in paths:
            path = f"{SCREENSHOTS}/{stem}-{len(paths) + 1}.{kind}"
            paths[call_id, image] = path
            extracted.files[path] = image
            extracted.screenshots.append({"tool_call_id": call_id, "path": path})
        return paths[call_id, image]

    for call in calls:
        for image in call.images:
            path_of(call.call_id, image, "png")
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            extracted.messages.append(message)
            continue
        call_id, parts = str(message.get("tool_call_id") or ""), []
        for part in content:
            decoded = _decode_image(part)
            parts.append(part if decoded is None else _with_path(part, path_of(call_id, decoded[1], decoded[0])))
        extracted.messages.append({**message, "content": parts})
    return extracted


def _decode_image(part: object) -> tuple[str, bytes] | None:
    """Return the type and content of an image part, or None if it is not an image or only links to one."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    address = part.get("image_url")
    data = _DATA_URL.fullmatch(str(address.get("url"))) if isinstance(address, dict) else None
    try:
        return None if data is None else (data.group(1).lower(), b64decode(data.group(2), validate=True))
    except binascii.Error:
        return None


def _with_path(part: Message, path: str) -> Message:
    return {**part, "image_url": {**part["image_url"], "url": path}}
