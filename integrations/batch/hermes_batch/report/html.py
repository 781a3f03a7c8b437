"""HTML elements in which output of a model or a program can only be text."""

from __future__ import annotations

import html
import re

# C0 and C1 controls except tab and line feed, and characters that reorder or hide others.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES, _DELETE, _PICTURE_OF_DELETE = 0x2400, 0x7F, "\u2421"


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def make_visible(text: str) -> str:
    r"""Return the text with invisible characters made visible: the escape of a terminal sequence as ␛, others as
    \\u202e.
    """
    return _INVISIBLE.sub(_show_character, text.replace("\r\n", "\n"))


def escape(text: str) -> Markup:
    """Return the text as HTML. Markup is returned unchanged."""
    return text if isinstance(text, Markup) else Markup(html.escape(make_visible(text)))


def join(*parts: str) -> Markup:
    """Concatenate the parts. Parts that are not Markup are escaped."""
    return Markup("".join(escape(part) for part in parts))


def element(tag: str, *children: str, cls: str | None = None, **attributes: str) -> Markup:
    """Return an element. Children and attribute values that are not Markup are escaped."""
    all_attributes = {**({"class": cls} if cls else {}), **attributes}
    text = "".join(f' {name}="{escape(value)}"' for name, value in all_attributes.items())
    return Markup(f"<{tag}{text}>{join(*children)}</{tag}>")


def _show_character(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == _DELETE:
        return _PICTURE_OF_DELETE
    return chr(_PICTURES + code) if code < ord(" ") else f"\\u{code:04x}"
