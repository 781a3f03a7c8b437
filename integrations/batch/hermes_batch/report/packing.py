"""Compressed texts inside a page: the browser unpacks each one when it is needed."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode

from hermes_batch.report.html import Markup

_LEVEL = 3


def pack(text: str) -> str:
    """Return a text as base64 of a zlib stream, which contains no markup."""
    return b64encode(zlib.compress(text.encode("utf-8", "replace"), _LEVEL)).decode()


def pack_json(value: object) -> str:
    """Return JSON, packed."""
    return pack(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def data_element(name: str, packed: str) -> Markup:
    """Return an element with this id that holds a packed text. Browsers run no script of this type."""
    return Markup(f'<script type="text/plain" id="{name}">{packed}</script>\n')
