"""The images of messages: files in the directory of a run, which formats embed or copy."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_agent.messages import Message
from hermes_batch.export.example import FormatProblem
from hermes_batch.images import SCREENSHOTS

_PATH = re.compile(rf"{SCREENSHOTS}/[^/\\]*\.(png|jpe?g|gif|webp)")
_LINK = re.compile(r"https?://\S+")

ImageReader = Callable[[str], Any]


def image_type(url: str) -> str:
    """Return the MIME type of an image, by the end of its path or link.

    Raises:
        FormatProblem: If it is another file.
    """
    suffix = url.partition("?")[0].rpartition(".")[2].lower()
    kinds = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "gif": "gif", "webp": "webp"}
    if suffix not in kinds:
        raise FormatProblem(f"the image {url[:80]} is neither png, jpeg, gif nor webp")
    return f"image/{kinds[suffix]}"


def is_link(url: str) -> bool:
    """Return whether an image is on the web."""
    return bool(_LINK.fullmatch(url))


def read_image(run: Path, url: str) -> bytes:
    """Return the content of an image of a run.

    Only files directly in `screenshots/` are read, and no links: messages contain text of models and programs.

    Raises:
        FormatProblem: If it is no file of the run.
    """
    if not _PATH.fullmatch(url):
        raise FormatProblem(f"the image {url[:80]} is not in {SCREENSHOTS}/")
    try:
        with open(os.open(run / url, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read()
    except OSError as error:
        raise FormatProblem(f"the image {url} cannot be read: {error.strerror}") from None


def data_uri(run: Path, url: str) -> str:
    """Return an image as a data URI. A link stays a link."""
    if is_link(url) or url.startswith("data:"):
        return url
    return f"data:{image_type(url)};base64,{b64encode(read_image(run, url)).decode()}"


def image_url(part: Message) -> str:
    """Return the path or link of an image part.

    Raises:
        FormatProblem: If the part is not an image.
    """
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else None
    if part.get("type") != "image_url" or not isinstance(url, str):
        raise FormatProblem(f"there is a part of the type {part.get('type')}")
    return url
