"""The screenshots in the report."""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_batch.columns import decode_list
from hermes_batch.images import SCREENSHOTS
from hermes_batch.report.html import Markup, element, escape

_MAX_BYTES = 30 << 20
_KINDS = {".jpeg": "jpeg", ".jpg": "jpeg", ".gif": "gif", ".webp": "webp"}


class ReportImages:
    """Loads the screenshots of records, up to a total size that browsers open easily."""

    def __init__(self, out: Path) -> None:
        self._directory = out / SCREENSHOTS
        self._bytes_left = _MAX_BYTES

    def load(self, record: Mapping[str, Any]) -> Mapping[str, Sequence[Markup]]:
        """Return the screenshots of a record by the id of the call that returned them. Those of the prompt are listed
        by path.
        """
        images: defaultdict[str, list[Markup]] = defaultdict(list)
        for screenshot in decode_list(record, "screenshots"):
            path = str(screenshot.get("path"))
            images[str(screenshot.get("tool_call_id") or path)].append(self._image_element(path))
        return images

    def _image_element(self, path: str) -> Markup:
        try:
            png = (self._directory / Path(path).name).read_bytes()
        except OSError:
            return element("span", f"{path} is missing", cls="quiet")
        if len(png) > self._bytes_left:
            return element("span", f"in {path}", cls="quiet")
        self._bytes_left -= len(png)
        kind = _KINDS.get(Path(path).suffix, "png")
        source = f"data:image/{kind};base64,{b64encode(png).decode()}"
        image = Markup(f'<img alt="{escape(path)}" src="{source}">')
        return element("details", element("summary", "Screenshot"), image, cls="folded")
